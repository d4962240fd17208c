"""`kvtier.lmcache.KvtierRemoteConnector` under LMCache's own in-process engine, its token database, its storage manager."""

import asyncio
import concurrent.futures
import pathlib
import socket
import time
import unittest
import urllib.request
import uuid
from types import SimpleNamespace

import torch
from kvtier.lmcache import _extra_config, remote
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector import GPUConnectorInterface
from lmcache.v1.metadata import LMCacheMetadata
from scene import Case

LAYERS, CHUNK, HEADS, HEAD = 4, 16, 2, 32
HIDDEN = HEADS * HEAD


class Gpu(GPUConnectorInterface):
    """Instead of a GPU: memory in which every token has its own value."""

    def __init__(self):
        self.got = {}

    def get_shape(self, num_tokens):
        return torch.Size([2, LAYERS, num_tokens, HIDDEN])

    def to_gpu(self, memory_obj, start, end, **_):
        self.got[start, end] = memory_obj.tensor.clone()

    def from_gpu(self, memory_obj, start, end, **_):
        memory_obj.tensor.copy_(of_tokens(start, end))

    def batched_to_gpu(self, memory_objs, starts, ends, **_):
        for obj, start, end in zip(memory_objs, starts, ends):
            self.to_gpu(obj, start, end)

    def batched_from_gpu(self, memory_objs, starts, ends, **_):
        for obj, start, end in zip(memory_objs, starts, ends):
            self.from_gpu(obj, start, end)


def of_tokens(start, end):
    tokens = torch.arange(start, end, dtype=torch.bfloat16).reshape(1, 1, -1, 1)
    layers = torch.arange(2 * LAYERS, dtype=torch.bfloat16).reshape(2, LAYERS, 1, 1)
    return (tokens + layers * 1000).expand(2, LAYERS, end - start, HIDDEN)


class Engine(Case):
    """An engine of LMCache's with our connector, or with its own."""

    model, kv_shape, gpu_class = "org/model", (LAYERS, 2, CHUNK, HEADS, HEAD), Gpu

    def engine(self, extra=None, class_name="KvtierRemoteConnector", **settings):
        place = "remote_storage_plugin.kvtier"
        plugin = {f"{place}.module_path": "kvtier.lmcache", f"{place}.class_name": class_name}
        plugin[f"{place}.url"] = f"fs://host:0{self.dir}"
        extra = {**plugin, **(extra or {})}
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK,
            local_cpu=False,
            max_local_cpu_size=0.05,
            remote_storage_plugins=["kvtier"],
            extra_config={name: value for name, value in extra.items() if value is not None},
            **settings,
        )
        return self.start(config)

    def theirs(self, meta, **settings):
        extra = {"remote_storage_plugin.fs.base_path": self.dir, "save_chunk_meta": meta}
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK,
            local_cpu=False,
            max_local_cpu_size=0.05,
            remote_storage_plugins=["fs"],
            extra_config=extra,
            **settings,
        )
        return self.start(config)

    def start(self, config):
        metadata = LMCacheMetadata(self.model, 1, 1, 0, 0, torch.bfloat16, self.kv_shape, chunk_size=CHUNK)
        name, self.gpu = str(uuid.uuid4()), self.gpu_class()
        engine = LMCacheEngineBuilder.get_or_create(name, config, metadata, self.gpu, lambda *_: None, lambda *_: None)
        engine.post_init()
        self.addCleanup(LMCacheEngineBuilder.destroy, name)
        self.stop = lambda: LMCacheEngineBuilder.destroy(name)
        return engine

    def stored(self, engine, tokens, chunks):
        engine.store(tokens)
        limit = time.monotonic() + 300
        while engine.lookup(tokens) < chunks and time.monotonic() < limit:
            time.sleep(0.02)
        self.assertEqual(engine.lookup(tokens), chunks)

    def on_loop(self, engine, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, engine.storage_manager.loop).result(20)

    def allocated(self):
        return self.engine_now.storage_manager.allocator_backend.memory_allocator.pin_allocator.num_active_allocations

    def whole(self, tokens, wanted):
        there = [True] * wanted + [False] * (len(tokens) - wanted)
        self.assertEqual(self.engine_now.retrieve(tokens).tolist(), there)
        for (start, end), found in self.gpu.got.items():
            self.assertTrue(torch.equal(found, of_tokens(start, end)), (start, end))
        self.assertEqual(max((end for _, end in self.gpu.got), default=0), wanted)


class Remote(Engine):
    def both(self):
        """A directory holds chunks of one length: one for those with headers, one for those without."""
        base = self.dir
        for meta in (False, True):
            self.dir = f"{base}/{meta}"
            yield meta

    def test_the_engine_stores_finds_and_retrieves_with_and_without_headers_and_after_a_restart(self):
        tokens = list(range(5 * CHUNK))
        for n, meta in enumerate(self.both()):
            mine = [token + 10_000 * n for token in tokens]
            engine = self.engine({"save_chunk_meta": meta})
            self.stored(engine, mine, len(mine))
            self.stop()
            self.engine_now = self.engine({"save_chunk_meta": meta})
            self.assertEqual(self.engine_now.lookup([*mine, *range(7, 7 + CHUNK)]), len(mine))
            self.whole(mine, len(mine))
            self.assertEqual(self.engine_now.lookup([5, *mine]), 0)
            self.stop()

    def test_the_last_chunk_may_be_shorter(self):
        for n, meta in enumerate(self.both()):
            tokens = [token + 10_000 * n for token in range(2 * CHUNK + 5)]
            self.engine_now = self.engine({"save_chunk_meta": meta}, save_unfull_chunk=True)
            self.stored(self.engine_now, tokens, len(tokens))
            self.whole(tokens, len(tokens))
            self.stop()

    def test_lmcache_and_kvtier_read_each_others_files(self):
        for n, meta in enumerate(self.both()):
            tokens = [token + 10_000 * n for token in range(3 * CHUNK)]
            self.stored(self.engine({"save_chunk_meta": meta}), tokens, len(tokens))
            self.stop()
            self.engine_now = self.theirs(meta)
            self.assertEqual(self.engine_now.lookup(tokens), len(tokens))
            self.whole(tokens, len(tokens))
            more = [token + 5_000 for token in tokens]
            self.stored(self.engine_now, more, len(more))
            self.stop()
            self.engine_now = self.engine({"save_chunk_meta": meta})
            self.assertEqual(self.engine_now.lookup(more), len(more))
            self.whole(more, len(more))
            self.stop()

    def test_keys_are_listed_and_removed(self):
        tokens = list(range(3 * CHUNK))
        engine = self.engine(class_name="KvtierConnectorAdapter")
        self.stored(engine, tokens, len(tokens))
        backend = engine.storage_manager.storage_backends["RemoteBackend-kvtier"]
        connector = backend.connection.getWrappedConnector()
        keys = [key for _, _, key in engine.token_database.process_tokens(tokens)]
        listed = self.on_loop(engine, connector.list())
        self.assertEqual(sorted(listed), sorted(key.to_string() for key in keys))
        self.assertTrue(connector.remove_sync(keys[1]))
        self.assertEqual(connector.batched_contains(keys), 1)
        self.assertEqual([connector.exists_sync(key) for key in keys], [True, False, True])
        found = self.on_loop(engine, connector.batched_get_non_blocking("id", keys))
        self.assertEqual(len(found), 1, "chunks after a gap are no prefix")
        found[0].ref_count_down()
        found = self.on_loop(engine, connector.batched_get(keys))
        self.assertEqual([obj is not None for obj in found], [True, False, True])
        [obj.ref_count_down() for obj in found if obj is not None]
        self.assertEqual(self.on_loop(engine, connector.ping()), 0)

    def test_the_engines_memory_is_returned(self):
        tokens = list(range(4 * CHUNK))
        self.engine_now = self.engine()
        self.stored(self.engine_now, tokens, len(tokens))
        for _ in range(3):
            self.whole(tokens, len(tokens))
        self.assertEqual(self.allocated(), 0)

    def test_a_cancelled_call_returns_its_memory(self):
        tokens = list(range(2 * CHUNK + 5))
        self.engine_now = engine = self.engine({"save_chunk_meta": True}, save_unfull_chunk=True)
        self.stored(engine, tokens, len(tokens))
        connector = engine.storage_manager.storage_backends["RemoteBackend-kvtier"].connection.getWrappedConnector()
        keys = [key for _, _, key in engine.token_database.process_tokens(tokens)]

        async def cancelled(*_):
            raise asyncio.CancelledError

        limit = time.monotonic() + 300
        while self.allocated() and time.monotonic() < limit:
            time.sleep(0.02)
        connector._get_odd, allocate, got = cancelled, connector.local_cpu_backend.allocate, []
        connector.local_cpu_backend.allocate = lambda *what: got.append(allocate(*what)) or got[-1]
        with self.assertRaises((asyncio.CancelledError, concurrent.futures.CancelledError)):
            self.on_loop(engine, connector.batched_get(keys))
        self.assertEqual((len(got), self.allocated()), (2, 0))

    def test_an_impossible_header_is_a_miss_and_allocates_no_memory(self):
        tokens = list(range(2 * CHUNK + 5))
        self.engine_now = engine = self.theirs(True, save_unfull_chunk=True)
        self.stored(engine, tokens, len(tokens))
        self.stop()
        # Chunks of LMCache have no checksums: the connector must detect a flipped byte in a shape.
        odd = min(pathlib.Path(self.dir).glob("*.data"), key=lambda file: file.stat().st_size)
        data = bytearray(odd.read_bytes())
        data[15] = 0x7F
        odd.write_bytes(data)
        self.engine_now = engine = self.engine({"save_chunk_meta": True}, save_unfull_chunk=True)
        connector = engine.storage_manager.storage_backends["RemoteBackend-kvtier"].connection.getWrappedConnector()
        keys = [key for _, _, key in engine.token_database.process_tokens(tokens)]
        asked, allocate = [], connector.local_cpu_backend.allocate
        connector.local_cpu_backend.allocate = lambda shapes, *rest: asked.append(shapes) or allocate(shapes, *rest)
        with self.assertLogs("kvtier", "WARNING"):
            found = self.on_loop(engine, connector.batched_get(keys))
        self.assertEqual([obj is not None for obj in found], [True, True, False])
        [obj.ref_count_down() for obj in found if obj is not None]
        self.assertEqual(len(asked), 2)

    def test_contradictory_settings_are_logged_and_disable_the_backend(self):
        place = "remote_storage_plugin.kvtier"
        for says, extra, settings in [
            ("remote_url.*move it to", {}, {"remote_url": f"fs://host:0{self.dir}"}),
            ("url.*missing", {f"{place}.url": None}, {}),
            ("redis", {f"{place}.url": "redis://host:1"}, {}),
            (r"kvtier.ulr'\].*no such setting.*write 'remote_storage_plugin.kvtier.url'", {f"{place}.ulr": "fs://host:0/x"}, {}),
            (r"'kvtier.gds_shap'\].*write 'kvtier.gds_shape'", {"kvtier.gds_shap": "2x4x16x64"}, {}),
        ]:
            with self.subTest(says), self.assertLogs("lmcache.v1.storage_backend", "ERROR") as log:
                engine = self.engine(extra, **settings)
            self.assertRegex("\n".join(log.output), says)
            self.assertNotIn("RemoteBackend-kvtier", engine.storage_manager.storage_backends)
            self.stop()

    def test_a_password_in_a_url_is_masked(self):
        for url, shown in [
            ("redis://me:TOPSECRET@host:1", r"'redis://\*\*\*@host:1'"),
            ("redis://me:TOP/SECRE#T@host:1", r"'redis://\*\*\*@host:1'"),
            ("redis://me:TOP/SEC?RE#T@host:1", r"'redis://\*\*\*'"),
            ("me:TOPSECRET@host:1", r"'\*\*\*@host:1'"),
            ("s3://me@TOPSECRET@host/path", r"'s3://\*\*\*@host/path'"),
            ("s3://bucket/path", "'s3://bucket/path'"),
            ("s3://bucket/path?token=TOPSECRET", r"'s3://bucket/path\?\*\*\*'"),
            ("https://me:TOPSECRET@host/path?token=TOPSECRET", r"'https://\*\*\*@host/path\?\*\*\*'"),
            ("s3://bucket/path?token=TOP@SECRET", r"'s3://\*\*\*'"),
            ("s3://me:TOPSECRET@host?token=TOP@SECRET", r"'s3://\*\*\*'"),
            ("redis://host:1?token=TOP@SECRET", r"'redis://\*\*\*'"),
        ]:
            config = SimpleNamespace(extra_config={}, remote_url=url)
            with self.subTest(url), self.assertRaisesRegex(ValueError, f"{shown}.*move it to") as raised:
                remote._settings(config, "kvtier", 4096)
            self.assertNotRegex(str(raised.exception), "TOP|SEC|RE#T")

    def test_settings_of_a_plugin_with_a_longer_name_are_separate(self):
        place = "remote_storage_plugin.kvtier"
        config = SimpleNamespace(
            extra_config={f"{place}.url": "fs://host:0/x", f"{place}.second.url": "fs://host:0/y"},
            remote_url=None,
            remote_storage_plugins=["kvtier", "kvtier.second"],
            blocking_timeout_secs=10,
            save_unfull_chunk=False,
        )
        self.assertEqual(remote._settings(config, "kvtier", 4096)["remote_storage_plugins"], ["kvtier"])
        config.remote_storage_plugins = ["kvtier"]
        with self.assertRaisesRegex(ValueError, "kvtier.second.url.*no such setting"):
            remote._settings(config, "kvtier", 4096)


class Metrics(Engine):
    def test_they_are_served_beside_the_tiers(self):
        with self.assertLogs("kvtier", "INFO") as log:
            self.engine({"remote_storage_plugin.kvtier.metrics": "127.0.0.1:0"})
        [line] = [line for line in log.output if "metrics at" in line]
        with urllib.request.urlopen(line.rpartition(" ")[2], timeout=60) as answer:
            self.assertIn("kvtier_healthy", answer.read().decode())

    def test_every_worker_has_a_port_of_its_own(self):
        def address(text, worker):
            return _extra_config.metrics_address({"plugin.metrics": text}, "plugin", SimpleNamespace(worker_id=worker))

        self.assertEqual(address("127.0.0.1:9464", 0), "127.0.0.1:9464")
        self.assertEqual(address("[::1]:9464", 3), "[::1]:9467")
        self.assertEqual(address("127.0.0.1:0", 3), "127.0.0.1:0")
        self.assertIsNone(address(None, 3))
        with self.assertRaisesRegex(ValueError, "HOST:PORT"):
            address("9464", 0)

    def test_a_used_port_disables_metrics_and_not_the_tiers(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with self.assertLogs("kvtier", "ERROR") as log:
                engine = self.engine({"remote_storage_plugin.kvtier.metrics": address})
        self.assertRegex("\n".join(log.output), f"cannot serve metrics at .*{address}.*without metrics")
        tokens = list(range(CHUNK))
        self.stored(engine, tokens, len(tokens))


if __name__ == "__main__":
    unittest.main()
