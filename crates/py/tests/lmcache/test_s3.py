"""Our plugins over a bucket, inside LMCache: beside its own S3 adapter on the same objects, and through faults that its own does not outlive."""

import asyncio
import os
import subprocess
import sys
import time
import unittest

sys.path.append(os.path.dirname(os.path.dirname(__file__)))
from bucket import KEYS, Server  # noqa: E402
from kvtier import errors  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import NativeConnectorL2Adapter  # noqa: E402
from scene import MIB, MODEL, Case, adapter, content, key  # noqa: E402
from test_remote import CHUNK, Engine  # noqa: E402
from test_server import Server as Controllers  # noqa: E402

# LMCache requires the bucket in the host name. This name is part of the server's host, 127.0.0.1; kvtier uses another name of it.
BUCKET = "127.0.0"
# Of 8 MiB and more LMCache writes and reads in parts.
SIZES = [4096, 40_000, MIB, 10 * MIB]


class Bucket(Case):
    def setUp(self):
        super().setUp()
        self.server = self.served()

    def served(self, port=0):
        server = Server(BUCKET, port)
        self.addCleanup(server.stop)
        return server

    def plugin(self, params=None, **more):
        spec = {"type": "plugin", "module_path": "kvtier.lmcache", "class_name": "KvtierL2Adapter"}
        a = adapter({**spec, "adapter_params": params or self.server.spec(**more)}, self.arena)
        self.addCleanup(a.close)
        return a

    def native(self, **more):
        spec = {"type": "native_plugin", "module_path": "kvtier", "class_name": "Connector"}
        a = adapter({**spec, "adapter_params": {"tiers": [self.server.spec()], **more}}, self.arena)
        self.assertIs(type(a), NativeConnectorL2Adapter)
        self.addCleanup(a.close)
        return a

    def theirs(self):
        """LMCache's own, whose endpoint is the host of the bucket, and whose TLS is off by another name."""
        spec = {name: value for name, value in self.server.spec().items() if name != "bucket"}
        a = adapter({**spec, "s3_endpoint": f"127.0.0.1:{self.server.port}", "disable_tls": True})
        self.addCleanup(a.close)
        return a

    def until(self, what, seconds=60):
        limit = time.monotonic() + seconds
        while not what():
            self.assertLess(time.monotonic(), limit, "it did not come")
            time.sleep(0.05)

    def wrote(self, a, keys, size):
        for n, k in enumerate(keys):
            self.assertTrue(self.store(a, [k], [self.arena.obj(size, n)]).is_successful(), k)

    def reads(self, a, keys, size):
        self.assertEqual(self.lookup(a, keys), [True] * len(keys))
        into = [self.arena.obj(size, 200) for _ in keys]
        self.assertEqual(self.load(a, keys, into), [True] * len(keys))
        for n, obj in enumerate(into):
            self.assertEqual(bytes(obj.byte_array), content(n, size))
        a.submit_unlock(keys)


class Moves(Bucket):
    def test_chunks_of_every_size_are_found_loaded_and_deleted_under_both(self):
        for make in (self.native, self.plugin):
            a = make()
            for group, size in enumerate(SIZES):
                keys = [key(n, group=group) for n in range(4)]
                self.wrote(a, keys, size)
                self.assertEqual(self.lookup(a, [key(99, group=group)]), [False])
                self.reads(a, keys, size)
                a.delete(keys)
                self.assertEqual(self.lookup(a, keys), [False] * 4)
            self.assertEqual(self.server.keys(), [])

    def test_the_object_of_the_former_adapter_works_unchanged(self):
        for group, size in enumerate(SIZES):
            mine, others = [key(n, group=group) for n in range(3)], [key(n, "alice", group=group) for n in range(3)]
            theirs = self.theirs()
            self.wrote(theirs, [*mine, *others], size)
            ours = self.plugin()
            self.reads(ours, mine, size)
            self.assertEqual(self.lookup(ours, others), [True] * 3)
            self.assertEqual(ours.report_status()["counters"]["unverified"], 3, "they have no checksums, which is counted")
            more = [key(n + 100, group=group) for n in range(3)]
            self.wrote(ours, more, size)
            ours.close()
            self.reads(self.theirs(), more, size)

    def test_locked_chunks_are_not_deleted_until_every_lock_is_released(self):
        a = self.plugin()
        self.wrote(a, [key(1), key(2)], MIB)
        self.lookup(a, [key(1)])
        self.lookup(a, [key(1), key(2)])
        self.load(a, [key(1)], [self.arena.obj(MIB)])
        a.delete([key(1), key(2)])
        self.assertEqual(len(self.server.keys()), 2)
        a.submit_unlock([key(1), key(2)])
        a.delete([key(1)])
        self.assertEqual(len(self.server.keys()), 2, "the first was locked twice")
        a.submit_unlock([key(1)])
        a.delete([key(1), key(2)])
        self.assertEqual(self.server.keys(), [])


class Truth(Bucket):
    def test_usage_by_salt_of_all_processes_is_correct_after_a_restart(self):
        a = self.plugin(max_capacity_gb=1)
        self.wrote(a, [key(1), key(2, "alice")], MIB)
        self.wrote(self.theirs(), [key(3, "alice"), key(4, "bob")], MIB)
        a.close()
        a = self.plugin(max_capacity_gb=1)
        # The bucket is listed in the background, before any key was asked for.
        self.until(lambda: a.get_usage().total_bytes_used == 4 * MIB)
        usage = a.get_usage()
        self.assertEqual(dict(usage.bytes_by_cache_salt), {"": MIB, "alice": 2 * MIB, "bob": MIB})
        self.assertEqual(usage.total_capacity_bytes, 1 << 30)
        status = a.report_status()
        self.assertEqual((status["is_healthy"], status["chunks"], status["current_size_bytes"]), (True, 4, 4 * MIB))

    def test_keys_of_all_processes_are_listed_page_by_page(self):
        keys = [key(n, salt) for n, salt in enumerate(["", "", "alice", "bob"])]
        self.wrote(self.theirs(), keys[:2], MIB)
        a = self.plugin()
        self.wrote(a, keys[2:], MIB)
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor:
            page = a.list_l2_keys(page_size=3, cursor=cursor)
            self.assertLessEqual(len(page.entries), 3)
            found, cursor, pages = found + list(page.entries), page.next_page_token, pages + 1
        self.assertEqual({entry.key.to_object_key() for entry in found}, set(keys))
        self.assertEqual({entry.size_bytes for entry in found}, {MIB})
        self.assertEqual(len(a.list_l2_keys(model_name=MODEL).entries), 4)
        self.assertEqual(a.list_l2_keys(model_name="other").entries, ())

    def test_in_kvtiers_layout_listing_is_an_error_with_the_reason(self):
        a = self.plugin({"tiers": [self.server.spec()]})
        with self.assertRaisesRegex(NotImplementedError, "digests"):
            a.list_l2_keys()


class Faults(Bucket):
    def test_a_bucket_that_fails_costs_hits_until_it_recovers(self):
        a = self.plugin({**self.server.spec(), "timeout_seconds": 5})
        self.wrote(a, [key(0)], MIB)
        self.server.stop()
        with self.assertLogs("kvtier"):
            for n in range(4):
                self.assertFalse(self.store(a, [key(n + 10)], [self.arena.obj(MIB, 0)]).is_successful())
            self.assertEqual(self.load(a, [key(0)], [self.arena.obj(MIB)]), [False])
            a.delete([key(0)])
        self.server = self.served(self.server.port)
        # LMCache's own adapter is off for good after the third.
        self.until(lambda: self.store(a, [key(0)], [self.arena.obj(MIB, 0)]).is_successful())
        # Reads are left alone for a moment by themselves.
        into = self.arena.obj(MIB)
        self.until(lambda: self.load(a, [key(0)], [into]) == [True])
        self.assertEqual(bytes(into.byte_array), content(0, MIB))


class InProcess(Engine):
    """The remote connector under the real engine, its url a bucket's."""

    def setUp(self):
        super().setUp()
        self.server = Server(BUCKET)
        self.addCleanup(self.server.stop)

    extra = {"s3_region": "us-east-1", "disable_tls": True, "save_chunk_meta": False, **KEYS}

    def ours(self, extra=None, **settings):
        url = f"s3://localhost:{self.server.port}"
        own = {"remote_storage_plugin.kvtier.url": url, "bucket": BUCKET, **(extra or {})}
        return self.engine({**self.extra, **own}, **settings)

    def theirs(self, port, tokens, more):
        """LMCache's own connector reads some tokens and writes others. Its close never ends: a process of its own does without."""
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK,
            local_cpu=False,
            max_local_cpu_size=0.05,
            remote_url=f"s3://127.0.0.1:{port}",
            extra_config=self.extra,
        )
        self.engine_now = self.start(config)
        self.assertEqual(self.engine_now.lookup(tokens), len(tokens))
        self.whole(tokens, len(tokens))
        self.stored(self.engine_now, more, len(more))
        print("theirs: done", flush=True)
        os._exit(0)

    def test_the_engine_stores_and_retrieves_after_a_restart_and_lmcache_and_kvtier_read_each_others_files(self):
        tokens = list(range(5 * CHUNK))
        self.stored(self.ours(), tokens, len(tokens))
        self.stop()
        self.assertEqual(len(self.server.keys()), 5)
        self.engine_now = self.ours()
        self.assertEqual(self.engine_now.lookup([*tokens, *range(7, 7 + CHUNK)]), len(tokens))
        self.whole(tokens, len(tokens))
        self.stop()
        more = [token + 5_000 for token in tokens]
        words = [sys.executable, __file__, "theirs", str(self.server.port), str(len(tokens)), "5000"]
        child = subprocess.run(words, capture_output=True, text=True, timeout=300)
        self.assertIn("theirs: done", child.stdout, child.stderr)
        self.engine_now = self.ours()
        self.assertEqual(self.engine_now.lookup(more), len(more))
        self.whole(more, len(more))


    def test_objects_have_no_headers_by_default(self):
        tokens, unsaid = list(range(3 * CHUNK)), {"save_chunk_meta": None}
        self.stored(self.ours(unsaid), tokens, len(tokens))
        self.stop()
        self.engine_now = self.ours(unsaid)
        self.whole(tokens, len(tokens))
        self.stop()
        self.engine_now = self.ours({"save_chunk_meta": False})
        self.whole(tokens, len(tokens))

    def test_a_first_chunk_of_another_length_is_refused_also_in_kvtier_tiers(self):
        place = "remote_storage_plugin.kvtier"
        for layout in ("lmcache", "kvtier"):
            tiers = [self.server.spec(layout=layout)]
            engine = self.engine({f"{place}.url": None, f"{place}.tiers": tiers, "save_chunk_meta": False})
            connector = engine.storage_manager.storage_backends["RemoteBackend-kvtier"].connection.getWrappedConnector()
            [key] = [key for _, _, key in engine.token_database.process_tokens(list(range(CHUNK)))]
            short, full = (
                connector.local_cpu_backend.allocate(engine.metadata.get_shapes(tokens), engine.metadata.get_dtypes())
                for tokens in (CHUNK // 2, CHUNK)
            )
            with self.subTest(layout):
                with self.assertRaisesRegex(errors.Invalid, f"chunks of this kind have {full.get_size()} bytes"):
                    self.on_loop(engine, connector.put(key, short))
                self.assertEqual(self.server.keys(), [])
                self.on_loop(engine, connector.put(key, full))
                self.assertEqual(len(self.server.keys()), 1)
            self.assertTrue(connector.remove_sync(key))
            [obj.ref_count_down() for obj in (short, full)]
            self.stop()

    def on_loop(self, engine, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, engine.storage_manager.loop).result(300)

    def test_settings_that_lmcaches_bucket_layout_cannot_hold_disable_the_backend(self):
        for says, extra, settings in [
            ("save_chunk_meta must be false", {"save_chunk_meta": True}, {}),
            ("save_unfull_chunk = true.*full chunks", {}, {"save_unfull_chunk": True}),
            ("use_layerwise: true with a bucket", {"save_chunk_meta": None}, {"use_layerwise": True}),
        ]:
            with self.subTest(says), self.assertLogs("lmcache.v1.storage_backend", "ERROR") as log:
                engine = self.ours(extra, **settings)
            self.assertRegex("\n".join(log.output), says)
            self.assertNotIn("RemoteBackend-kvtier", engine.storage_manager.storage_backends)
            self.stop()


class UnderControllers(Controllers):
    """As `lmcache server` makes it from its command line, over a bucket."""

    def setUp(self):
        super().setUp()
        self.server = Server(BUCKET)
        self.addCleanup(self.server.stop)

    def params(self):
        return self.server.spec(max_capacity_gb=1)


del Controllers

if __name__ == "__main__":
    if sys.argv[1:2] == ["theirs"]:
        port, count, offset = map(int, sys.argv[2:])
        InProcess().theirs(port, list(range(count)), [token + offset for token in range(count)])
    unittest.main()
