"""`remote_serde: cachegen` of LMCache through `kvtier.lmcache.KvtierRemoteConnector`: LMCache's engine encodes chunks before the connector gets
them, and decodes what it returns."""

import os
import pathlib
import pickle
import sys
import unittest

sys.path.append(os.path.dirname(os.path.dirname(__file__)))
import torch  # noqa: E402
from bucket import KEYS, Server  # noqa: E402
from test_remote import CHUNK, Engine, Gpu  # noqa: E402

# LMCache has the model "test_model" with 32 layers in its table: no look-up in a registry of models.
LAYERS, HEADS, HEAD = 32, 2, 4
BUCKET = "127.0.0"


class Noise(Gpu):
    """Memory in which every element has its own value."""

    def get_shape(self, num_tokens):
        return torch.Size([2, LAYERS, num_tokens, HEADS * HEAD])

    def from_gpu(self, memory_obj, start, end, **_):
        memory_obj.tensor.copy_(noise(start, end))


def noise(start, end):
    made = torch.Generator().manual_seed(start)
    return torch.randn((2, LAYERS, end - start, HEADS * HEAD), generator=made).to(torch.bfloat16)


class Cachegen(Engine):
    model, kv_shape, gpu_class = "test_model", (LAYERS, 2, CHUNK, HEADS, HEAD), Noise

    def ours(self, meta, **settings):
        """Our connector, which logs that chunks lose precision."""
        with self.assertLogs("kvtier", "WARNING") as log:
            engine = self.engine({"save_chunk_meta": meta}, remote_serde="cachegen", **settings)
        self.assertRegex("\n".join(log.output), "cachegen is lossy")
        return engine

    def encoded_by_lmcache(self, tokens, meta, serde="cachegen"):
        self.stored(self.theirs(meta, remote_serde=serde), tokens, len(tokens))
        self.stop()

    def retrieved(self, engine, tokens):
        self.engine_now = engine
        self.assertEqual(engine.lookup(tokens), len(tokens))
        self.assertEqual(engine.retrieve(tokens).tolist(), [True] * len(tokens))
        for (start, end), found in self.gpu.got.items():
            self.assertFalse(torch.equal(found, noise(start, end)), "a lossy encoding")
            self.assertLess((found.float() - noise(start, end).float()).abs().max(), 0.4)
        return dict(self.gpu.got)

    def missed(self, engine, tokens, says):
        self.assertEqual(engine.lookup(tokens), len(tokens))
        with self.assertLogs("kvtier", "WARNING") as log:
            self.assertFalse(engine.retrieve(tokens).any())
        self.assertRegex("\n".join(log.output), says)

    def same(self, left, right):
        self.assertEqual(left.keys(), right.keys())
        for at, found in left.items():
            self.assertTrue(torch.equal(found, right[at]), at)

    def connector(self, engine):
        return engine.storage_manager.storage_backends["RemoteBackend-kvtier"].connection.getWrappedConnector()

    def keys(self, engine, tokens):
        return [key for _, _, key in engine.token_database.process_tokens(tokens)]

    def files(self):
        return sorted(pathlib.Path(self.dir).glob("*.data"))

    def test_lmcache_and_kvtier_read_each_others_files(self):
        tokens, base = list(range(2 * CHUNK)), self.dir
        self.dir = f"{base}/theirs"
        self.encoded_by_lmcache(tokens, True)
        theirs = [file.name for file in self.files()]
        decoded = self.retrieved(self.theirs(True, remote_serde="cachegen"), tokens)
        self.stop()
        self.same(self.retrieved(self.ours(True), tokens), decoded)
        self.assertEqual(self.allocated(), 0)
        self.stop()
        self.dir = f"{base}/ours"
        self.stored(self.ours(True), tokens, len(tokens))
        self.stop()
        self.assertEqual([file.name for file in self.files()], theirs)
        self.same(self.retrieved(self.theirs(True, remote_serde="cachegen"), tokens), decoded)

    def test_without_headers_chunks_of_any_length_are_stored_and_served(self):
        # LMCache's own connector writes such files, and cannot read them.
        tokens = list(range(2 * CHUNK + 5))
        settings = {"remote_serde": "cachegen", "save_unfull_chunk": True}
        self.stored(self.theirs(False, **settings), tokens, len(tokens))
        self.stop()
        more = [*tokens[: 2 * CHUNK], *range(500, 500 + CHUNK)]
        engine = self.ours(False, save_unfull_chunk=True)
        decoded = self.retrieved(engine, tokens)
        self.assertEqual(sorted(end - start for start, end in decoded), [5, CHUNK, CHUNK])
        self.stored(engine, more, len(more))
        self.assertGreater(len({file.stat().st_size for file in self.files()}), 2)
        self.retrieved(engine, more)
        self.assertEqual(self.allocated(), 0)

    def test_what_lmcache_loads_ahead_is_decoded(self):
        # LMCache calls no deserializer for these loads.
        tokens = list(range(2 * CHUNK + 5))
        self.stored(self.ours(True, save_unfull_chunk=True), tokens, len(tokens))
        self.stop()
        self.engine_now = engine = self.ours(True, save_unfull_chunk=True)
        decoded = self.retrieved(engine, tokens)
        connector, keys = self.connector(engine), self.keys(engine, tokens)
        found = self.on_loop(engine, connector.batched_get_non_blocking("id", keys))
        self.assertEqual(len(found), 3)
        for obj, wanted in zip(found, decoded.values()):
            self.assertEqual(obj.tensor.shape, wanted.shape)
            self.assertTrue(torch.equal(obj.tensor, wanted))
            obj.ref_count_down()
        self.assertEqual(self.allocated(), 0)
        self.assertTrue(connector.remove_sync(keys[1]))
        found = self.on_loop(engine, connector.batched_get_non_blocking("id", keys))
        self.assertEqual(len(found), 1, "chunks after a gap are no prefix")
        found[0].ref_count_down()
        self.assertEqual(self.allocated(), 0)

    def test_a_pickle_that_runs_code_or_a_damaged_one_is_a_miss(self):
        tokens, marker = list(range(CHUNK)), pathlib.Path(self.dir, "ran")
        self.encoded_by_lmcache(tokens, False)
        [file] = self.files()
        stored = file.read_bytes()

        class Code:
            def __reduce__(self):
                return (os.mkdir, (str(marker),))

        cut = stored[: len(stored) // 2]
        for data in (pickle.dumps(Code()), stored[:-1].replace(b"collections", b"Collections"), cut, stored + bytes(1 << 20)):
            file.write_bytes(data)
            self.missed_or_unread(self.ours(False), tokens)
            self.stop()
            self.assertFalse(marker.exists())

    def missed_or_unread(self, engine, tokens):
        self.assertFalse(engine.retrieve(tokens).any())
        self.assertEqual(self.gpu.got, {})

    def test_chunks_of_another_serde_are_misses(self):
        base = self.dir
        for meta, says in ((True, "another remote_serde"), (False, "no CacheGen|CacheGen")):
            tokens = list(range(CHUNK))
            self.dir = f"{base}/plain/{meta}"
            self.encoded_by_lmcache(tokens, meta, "naive")
            self.missed(self.ours(meta), tokens, says)
            self.stop()
        self.dir = f"{base}/encoded"
        self.encoded_by_lmcache(tokens, True)
        self.missed(self.engine({"save_chunk_meta": True}), tokens, "no matching header")

    def test_what_lmcache_cannot_encode_is_refused_at_the_start(self):
        with self.assertLogs("lmcache.v1.storage_backend", "ERROR") as log:
            self.engine({"save_chunk_meta": True}, remote_serde="cachegen", use_layerwise=True)
        self.assertRegex("\n".join(log.output), "cachegen with use_layerwise: true.*write remote_serde: naive")


class Bucket(Cachegen):
    def test_encoded_chunks_are_kept_in_a_bucket(self):
        # LMCache's own connector refuses all but full chunks there.
        server = Server(BUCKET)
        self.addCleanup(server.stop)
        place = "remote_storage_plugin.kvtier"
        extra = {f"{place}.url": f"s3://localhost:{server.port}", "bucket": BUCKET, "s3_region": "us-east-1", "disable_tls": True, **KEYS}
        tokens = list(range(2 * CHUNK))
        self.stored(self.engine(extra, remote_serde="cachegen"), tokens, len(tokens))
        self.stop()
        self.retrieved(self.engine(extra, remote_serde="cachegen"), tokens)
        self.assertEqual(len(server.keys()), 2)


for name in [name for name in vars(Cachegen) if name.startswith("test_")]:
    setattr(Bucket, name, None)


if __name__ == "__main__":
    unittest.main()
