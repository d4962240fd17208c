"""The connector and the store over a bucket, at the S3 server of the Rust tests."""

import asyncio
import gc
import os
import socket
import time
import unittest

import kvtier
import lengths
import scripts
import test_connector
from bucket import KEYS, Server
from contract import Wrapper
from kvtier import Key, Store, errors
from test_connector import ENGINE, MIB, aligned, filled, key

# What a dead bucket may cost a batch here.
PATIENCE_SECONDS = 5.0


class Contract(test_connector.Contract):
    """All that holds over files, but for the cap, which a bucket keeps in the background."""

    def setUp(self):
        super().setUp()
        self.server = Server()
        self.addCleanup(self.server.stop)

    def client(self, bytes_max=None, **more):
        return kvtier.Connector(tiers=[self.server.spec()], **more)

    def test_the_capacity_holds_and_a_restart_finds_the_chunks(self):
        w = self.wrapped()
        for n in range(4):
            self.assertTrue(w.set([key(n)], [filled(n)])[0])
        w.close()
        again = self.wrapped()
        self.assertEqual(again.exists([key(n) for n in range(5)])[2], [True] * 4 + [False])
        into = aligned(MIB)
        self.assertEqual(again.get([key(3)], [into])[2], [True])
        self.assertEqual(into.tobytes(), filled(3).tobytes())

    def test_a_chunk_is_one_request_each_way(self):
        w = self.wrapped()
        w.exists([key(99)])
        self.server.requests()
        keys = [key(n) for n in range(8)]
        self.assertTrue(w.set(keys, [filled(n) for n in range(8)])[0])
        self.assertEqual(w.exists(keys)[2], [True] * 8)
        self.assertEqual(w.get(keys, [aligned(MIB) for _ in keys])[2], [True] * 8)
        self.assertEqual(self.server.requests(), {"PUT": 8, "GET": 8}, "and none to find them")


class Case(unittest.TestCase):
    def server(self, **more):
        server = Server(**more)
        self.addCleanup(server.stop)
        return server

    def wrapped(self, spec, **more):
        wrapper = Wrapper(kvtier.Connector(tiers=[spec] if isinstance(spec, dict) else spec, **more))
        self.addCleanup(wrapper.close)
        return wrapper

    def until(self, what, seconds=60):
        limit = time.monotonic() + seconds
        while not what():
            self.assertLess(time.monotonic(), limit, "it did not come")
            time.sleep(0.05)


class Faults(Case):
    def test_a_bucket_that_fails_is_misses_and_failed_saves_until_it_recovers(self):
        server = self.server()
        w = self.wrapped(server.spec(), timeout_seconds=PATIENCE_SECONDS)
        self.assertTrue(w.set([key(1)], [filled(1)])[0])
        server.stop()
        into = filled(7)
        with self.assertLogs("kvtier"):
            self.assertEqual(w.set([key(2)], [filled(2)])[0], False)
            ok, error, each = w.get([key(1)], [into])
        self.assertEqual((ok, each), (False, [False]))
        self.assertTrue(error)
        again = self.server(port=server.port)
        # LMCache's own adapter gives a bucket up for good after three such faults.
        self.until(lambda: w.set([key(3)], [filled(3)])[0])
        # Reads are left alone for a moment by themselves.
        self.until(lambda: w.get([key(3)], [into])[2] == [True])
        self.assertEqual(into.tobytes(), filled(3).tobytes())
        self.assertEqual(len(again.keys()), 1)

    def test_a_lookup_raises_if_a_key_has_no_answer(self):
        server = self.server()
        # Another client, so that the names of the objects come from the bucket and nothing is known here.
        writer = Store(tiers=[server.spec()])
        self.addCleanup(writer.close)
        keys = [key(n) for n in range(3)]
        writer.save(keys[:1], [filled(0)])
        (present,) = server.keys()
        writer.save(keys[1:2], [filled(1)])
        (denied,) = set(server.keys()) - {present}
        server.ask(f"deny-heads {denied}")
        above = {"type": "host", "bytes": 4 * MIB}
        for prefix in (False, True):
            store = Store(tiers=[server.spec()])
            self.addCleanup(store.close)
            with self.assertRaises(errors.Denied):
                store.lookup(keys, prefix=prefix)
            self.assertEqual(store.lookup([keys[0], keys[2]], prefix=prefix), [MIB, None])
            several = Store(tiers=[above, server.spec()])
            self.addCleanup(several.close)
            self.assertEqual(several.lookup(keys[:2], prefix=prefix), [MIB, None])

    def test_a_bucket_that_does_not_exist_is_logged_at_the_start(self):
        spec = self.server().spec(bucket="absent")
        for opened in (lambda: kvtier.Connector(tiers=[spec]), lambda: Store(tiers=[spec])):
            with self.assertLogs("kvtier", level="ERROR") as log:
                tiers = opened()
            self.addCleanup(tiers.close)
            self.assertIn("the bucket absent does not exist", log.output[0])
            self.assertIn("create it", log.output[0])
        self.assertFalse(tiers.status().healthy)
        self.assertIn("the bucket absent does not exist", " ".join(tiers.status().reasons))

    def test_foreign_objects_of_a_wrong_length_are_misses(self):
        server = self.server()
        spec = server.spec(layout="lmcache-mp")

        def put(number, data):
            server.put(next(name for name in server.keys() if f"@{number:02x}" in name), data)

        lengths.check(self, spec, put)

    def test_a_bucket_that_never_answers_costs_a_batch_only_its_timeout(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        port = silent.getsockname()[1]
        spec = {"type": "s3", "s3_endpoint": f"http://127.0.0.1:{port}", "bucket": "b", "s3_region": "r", **KEYS}
        w = self.wrapped(spec, timeout_seconds=5.0)
        began = time.monotonic()
        with self.assertLogs("kvtier") as log:
            futures = [w.submit("submit_batch_get", [key(n)], [aligned(4096)]) for n in range(8)]
            self.assertLess(time.monotonic() - began, 4.5, "submitting waits for nothing")
            for future in futures:
                self.assertEqual(w.wait(future)[2], [False])
        self.assertIn("deadline", "\n".join(log.output).lower())

    def test_wrong_credentials_are_reported_without_the_secret(self):
        spec = self.server().spec(aws_secret_access_key="wrong-and-secret")
        w = self.wrapped(spec, timeout_seconds=PATIENCE_SECONDS)
        with self.assertLogs("kvtier") as log:
            ok, error, _ = w.set([key(1)], [filled(1)])
        self.assertFalse(ok)
        self.assertRegex(error, "403|SignatureDoesNotMatch|denied|Denied|refus")
        self.assertNotIn("wrong-and-secret", "\n".join(log.output) + repr(w.client))

    def test_buffers_may_be_dropped_while_the_bucket_is_slow(self):
        server = self.server()
        w = self.wrapped(server.spec())
        self.assertTrue(w.set([key(99)], [filled(99)])[0])
        server.ask("stall 200 16")
        stored = []
        for n in range(16):
            stored.append(w.submit("submit_batch_set", [key(n)], [filled(n)]))
            gc.collect()
        self.assertTrue(all(w.wait(future)[0] for future in stored))
        server.ask("stall 200 8")
        loads = [w.submit("submit_batch_get", [key(n)], [aligned(MIB)]) for n in range(8)]
        gc.collect()
        self.assertEqual([w.wait(future)[2] for future in loads], [[True]] * 8)
        into = [aligned(MIB) for _ in range(16)]
        self.assertEqual(w.get([key(n) for n in range(16)], into)[2], [True] * 16)
        self.assertEqual([view.tobytes() for view in into], [filled(n).tobytes() for n in range(16)])

    def test_an_interpreter_may_end_with_requests_in_flight(self):
        server = self.server()
        for how in ("pass", "import sys; sys.exit(3)", "raise RuntimeError('on purpose')", "del c"):
            server.ask("stall 3000 64")
            code, said = scripts.run(f"""
                import kvtier
                from test_connector import filled, aligned, key
                c = kvtier.Connector(tiers=[{server.spec()!r}])
                c.submit_batch_set([key(n) for n in range(8)], [filled(n) for n in range(8)])
                c.submit_batch_get([key(n) for n in range(8)], [aligned(1 << 20) for n in range(8)])
                {how}
            """)
            with self.subTest(how, said=said):
                self.assertIn(code, (0, 1, 3))
                self.assertNotIn("panicked", said)


class Stacked(Case):
    def test_a_node_that_starts_empty_fills_its_disk_from_the_bucket(self):
        server = self.server()
        files = scripts.folder(self)

        def tiers(node):
            return [{"type": "file", "path": f"{files}/{node}", "bytes": 64 * MIB, "free_min": 0, **ENGINE}, server.spec()]

        first = self.wrapped(tiers("one"))
        self.assertTrue(first.set([key(n) for n in range(4)], [filled(n) for n in range(4)])[0])
        self.until(lambda: len(server.keys()) == 4)
        second = self.wrapped(tiers("two"))
        into = [aligned(MIB) for _ in range(4)]
        self.assertEqual(second.get([key(n) for n in range(4)], into)[2], [True] * 4)
        self.assertEqual([view.tobytes() for view in into], [filled(n).tobytes() for n in range(4)])
        alone = self.wrapped(tiers("two")[:1])
        self.until(lambda: alone.get([key(0)], [into[0]])[2] == [True])


class Embedded(Case):
    def opened(self, server, **more):
        store = Store(tiers=[server.spec(**more)])
        self.addCleanup(store.close)
        return store

    def key(self, n, salt=""):
        return Key("org/model", n.to_bytes(32, "big"), salt=salt)

    def test_batches_that_wait_and_batches_of_an_event_loop(self):
        store = self.opened(self.server())
        data, into = [os.urandom(MIB) for _ in range(4)], [bytearray(MIB) for _ in range(4)]
        keys = [self.key(n) for n in range(4)]
        self.assertEqual(store.save(keys, data), [True] * 4)
        self.assertEqual(store.lookup([*keys, self.key(9)]), [MIB] * 4 + [None])
        self.assertEqual(store.load(keys, into), [MIB] * 4)
        self.assertEqual([bytes(found) for found in into], data)

        async def work():
            self.assertEqual(await store.asave([self.key(7)], [data[0]]), [True])
            self.assertEqual(await store.aload([self.key(7), self.key(8)], into[:2]), [MIB, None])
            self.assertEqual(await store.aremove([self.key(7)]), [True])
            self.assertEqual(await store.alookup([self.key(7)]), [None])

        asyncio.run(work())
        self.assertEqual(bytes(into[0]), data[0])

    def test_usage_by_salt_is_correct_after_a_restart(self):
        server = self.server()
        for layout in ("kvtier", "lmcache-mp"):
            more = {"max_capacity_gb": 1, "layout": layout, "prefix": layout}
            store = self.opened(server, **more)
            for n, salt in enumerate(["", "alice", "bob", "bob"]):
                store.save([self.key(n, salt)], [b"x" * MIB])
            expected = (4 * MIB, 4, {"": MIB, "alice": MIB, "bob": 2 * MIB})
            seen = lambda usage: (usage.used_bytes, usage.chunks, usage.bytes_by_salt)
            self.assertEqual(seen(store.usage()), expected)
            store.close()
            again = self.opened(server, **more)
            with self.subTest(layout):
                self.until(lambda: not any("listed" in reason for reason in again.status().reasons))
                used, chunks, by_salt = seen(again.usage())
                self.assertEqual((used, chunks), expected[:2])
                if layout == "kvtier":
                    # kvtier's own layout stores only digests of salts: another process can distinguish salts, but not name them.
                    self.assertEqual(sorted(by_salt.values()), sorted(expected[2].values()))
                    self.assertTrue(all(salt.startswith("~") for salt in by_salt if salt), by_salt)
                    again.load([self.key(1, "alice"), self.key(2, "bob")], [bytearray(MIB), bytearray(MIB)])
                    self.until(lambda: seen(again.usage()) == expected)
                else:
                    self.assertEqual(by_salt, expected[2])
            self.assertEqual(again.lookup([self.key(1, "bob"), self.key(2, "bob")]), [None, MIB])

    def test_keys_are_listed_if_their_names_encode_them(self):
        server = self.server()
        store = self.opened(server, layout="lmcache-mp")
        keys = [self.key(n, salt) for n, salt in enumerate(["", "alice", "bob"])]
        store.save(keys, [b"x" * MIB] * 3)
        listing, found = store._tiers.listing(), []
        while page := listing.page(2):
            self.assertLessEqual(len(page), 2)
            found += page
        self.assertEqual(sorted(found), sorted((str(key), MIB) for key in keys))
        with self.assertRaisesRegex(NotImplementedError, "digests"):
            self.opened(server)._tiers.listing()

    def test_errors_have_kinds(self):
        server = self.server()
        with self.assertRaises(errors.Denied):
            self.opened(server, aws_secret_access_key="wrong").save([self.key(1)], [b"x"])
        with self.assertRaisesRegex(ValueError, "profile|region|endpoint"):
            Store(tiers=[{"type": "s3", "s3_endpoint": "http://localhost:1", "bucket": "b", "profile": "missing"}])


if __name__ == "__main__":
    unittest.main()
