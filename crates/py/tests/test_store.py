"""`kvtier.Store`, for programs of one's own."""

import array
import asyncio
import ctypes
import mmap
import os
import pathlib
import tempfile
import threading
import unittest
import urllib.request

import kvtier
import lengths
from kvtier import Key, Store, errors
from test_connector import ENGINE

MIB = 1 << 20


class Case(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(place.cleanup)
        self.dir = place.name

    def store(self, bytes_max=64 * MIB, **more):
        store = Store(tiers=[{"type": "file", "path": self.dir, "bytes": bytes_max, "free_min": 0, **ENGINE}], **more)
        self.addCleanup(store.close)
        return store


def key(n, salt=""):
    return Key("org/model", n.to_bytes(32, "big"), salt=salt)


class Waiting(Case):
    def test_saved_chunks_are_found_loaded_and_removed(self):
        store, data = self.store(), [os.urandom(MIB) for _ in range(4)]
        keys = [key(n) for n in range(4)]
        self.assertEqual(store.save(keys, data), [True] * 4)
        self.assertEqual(store.save(keys[:1], data[:1]), [False], "it was there")
        self.assertEqual(store.lookup([*keys, key(9)]), [MIB] * 4 + [None])
        self.assertEqual(store.lookup([keys[0], key(9), keys[1]], prefix=True), [MIB, None, None])
        into = [bytearray(MIB) for _ in range(5)]
        self.assertEqual(store.load([*keys, key(9)], into), [MIB] * 4 + [None])
        self.assertEqual([bytes(found) for found in into[:4]], data)
        self.assertEqual(into[4], bytearray(MIB), "a miss touches nothing")
        self.assertEqual(store.remove(keys[:2]), [True, True])
        self.assertEqual(store.lookup(keys), [None, None, MIB, MIB])

    def test_a_chunk_may_be_shorter_than_the_buffer_and_than_others(self):
        store = self.store()
        store.save([key(1), key(2)], [b"a" * MIB, b"b" * 5000])
        into = bytearray(MIB)
        self.assertEqual(store.load([key(2)], [into]), [5000])
        self.assertEqual(into[:5000], b"b" * 5000)

    def test_any_buffer_works_and_pieces_make_one_chunk(self):
        store, numbers = self.store(), array.array("d", range(1000))
        store.save([key(1)], [(b"head", numbers)])
        head, into = bytearray(4), array.array("d", [0.0] * 1000)
        self.assertEqual(store.load([key(1)], [(head, into)]), [8004])
        self.assertEqual((bytes(head), into), (b"head", numbers))

    def test_names_may_be_used_as_keys(self):
        store = self.store()
        store.save(["m@00000000@0@abcd"], [b"x" * 4096])
        self.assertEqual(store.lookup([Key("m", bytes.fromhex("abcd"))]), [4096])

    def test_stored_chunks_are_listed(self):
        store = self.store()
        keys = [key(n) for n in range(5)] + [Key("other", b"\0\1", rank=7, group=2)]
        store.save(keys, [b"x" * 4096 * (n + 1) for n in range(6)])
        self.assertEqual(dict(store.list()), {one: 4096 * (n + 1) for n, one in enumerate(keys)})
        self.assertEqual(list(store.list(model="other")), [(keys[5], 4096 * 6)])
        memory = Store(tiers=[{"type": "host", "bytes": MIB}])
        self.addCleanup(memory.close)
        with self.assertRaises(errors.Unsupported):
            memory.list()

    def test_objects_of_a_wrong_length_are_misses_and_only_buffers_that_are_short_are_errors(self):
        spec = {"type": "file", "path": self.dir, "bytes": 64 * MIB, "free_min": 0, "layout": "lmcache-mp"}
        lengths.check(self, spec, lambda n, data: self.foreign(next(pathlib.Path(self.dir).rglob(f"m*@{n:02x}*")), data))

    def foreign(self, path, data):
        """Replaces the chunk by another program's file."""
        path.unlink()
        path.write_bytes(data)

    def test_a_name_that_is_no_key_is_listed_as_a_text(self):
        store = Store(tiers=[{"type": "file", "path": self.dir, "bytes": 64 * MIB, "free_min": 0, "layout": "lmcache-mp"}])
        self.addCleanup(store.close)
        good, odd = Key("m", b"\xab"), "m@-0000001@0@ab"
        store.save([good], [b"x" * 4096])
        (pathlib.Path(self.dir) / "m@-0x0000001@0@ab.data").write_bytes(b"x" * 4096)
        self.assertEqual(dict(store.list()), {good: 4096, odd: 4096})

    def test_every_tier_reports_its_counters(self):
        tiers = [{"type": "host", "bytes": 2 * MIB}, {"type": "file", "path": self.dir, "bytes": 64 * MIB, **ENGINE}]
        store = Store(tiers=tiers)
        self.addCleanup(store.close)
        store.save([key(1)], [b"x" * MIB])
        store.lookup([key(1), key(2), key(3)])
        host, file = store.status().tiers
        self.assertEqual((host.name, file.name, file.capacity_bytes), ("host", "file", 64 * MIB))
        self.assertTrue(host.healthy and file.healthy)
        self.assertEqual((host.counters["lookup_keys"], host.counters["lookup_hits"]), (3, 1))
        self.assertEqual((file.counters["lookup_keys"], file.counters["lookup_hits"]), (2, 0), "what memory lacks")
        self.assertEqual(store.status().counters["lookup_keys"], 3)

    def test_metrics_are_served_until_it_is_closed(self):
        store = self.store(metrics="127.0.0.1:0")
        store.save([key(1)], [b"x" * MIB])
        store.lookup([key(1), key(2)])
        address = store.metrics_address
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        for line in ['kvtier_lookup_keys_total{tier="file"} 2', 'kvtier_lookup_hits_total{tier="file"} 1', 'kvtier_stored_total{tier="file"} 1']:
            self.assertIn(line, lines)
        with self.assertRaisesRegex(OSError, address):
            Store(tiers=[{"type": "host", "bytes": MIB}], metrics=address)
        store.close()
        self.assertIsNone(store.metrics_address)
        with self.assertRaises(OSError):
            urllib.request.urlopen(f"http://{address}/metrics", timeout=60)
        self.assertIsNone(self.store().metrics_address)

    def test_usage_and_status(self):
        store = self.store()
        store.save([key(1, "alice")], [b"x" * MIB])
        usage = store.usage()
        self.assertEqual((usage.chunks, usage.capacity_bytes), (1, 64 * MIB))
        self.assertGreaterEqual(usage.bytes_by_salt["alice"], MIB)
        self.assertTrue(store.status().healthy)
        self.assertIn("file", repr(store))

    def test_threads_share_it_and_wait_without_the_interpreters_lock(self):
        store, wrong = self.store(512 * MIB), []

        def work(t):
            for n in range(t * 100, t * 100 + 10):
                data, into = n.to_bytes(8, "big") * 8192, bytearray(65536)
                store.save([key(n)], [data])
                if store.load([key(n)], [into]) != [65536] or into != data:
                    wrong.append(n)

        threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(wrong, [])


class Errors(Case):
    def test_errors_of_batches_have_kinds(self):
        store = self.store()
        with self.assertRaises(errors.Invalid):
            store.lookup(["no key"])
        with self.assertRaisesRegex(ValueError, "one buffer a key"):
            store.save([key(1)], [])
        with self.assertRaisesRegex(ValueError, "read-only"):
            store.load([key(1)], [b"read only"])
        store.save([key(1)], [b"x" * MIB])
        with self.assertRaises(errors.Full):
            self.small().save([key(2)], [b"x" * (8 * MIB)])
        store.close()
        with self.assertRaises(errors.Closed):
            store.lookup([key(1)])
        self.assertTrue(issubclass(errors.Timeout, TimeoutError) and issubclass(errors.Invalid, errors.Error))

    def small(self):
        store = Store(tiers=[{"type": "host", "bytes": 2 * MIB}])
        self.addCleanup(store.close)
        return store

    def test_a_buffer_that_is_too_small_is_an_error(self):
        file = self.store()
        memory = Store(tiers=[{"type": "host", "bytes": 8 * MIB}])
        self.addCleanup(memory.close)
        for store in (file, memory):
            store.save([key(1), key(2)], [b"x" * MIB, b"y" * 4096])
            into, other = bytearray(MIB - 4096), bytearray(4096)
            with self.assertRaisesRegex(errors.Invalid, f"{MIB} bytes.*{MIB - 4096}"):
                store.load([key(1), key(2)], [into, other])
            self.assertEqual((into, other), (bytearray(MIB - 4096), b"y" * 4096), "the other one is loaded")
            with self.assertRaises(errors.Invalid):
                asyncio.run(store.aload([key(1)], [into]))

    def test_wrong_keys_fail_at_once(self):
        for wrong, kind in [
            (lambda: Key("m", "text"), TypeError),
            (lambda: Key(b"m", b"hash"), TypeError),
            (lambda: Key("m", b"hash", rank="0"), TypeError),
            (lambda: Key("m", b"hash", rank=-1), ValueError),
            (lambda: Key("m", b"hash", group=1 << 32), ValueError),
            (lambda: Key("a@b", b"hash"), ValueError),
            (lambda: kvtier.EngineKey("m", b"hash", "half"), TypeError),
        ]:
            with self.assertRaisesRegex(kind, "Key"):
                wrong()

    def test_a_single_key_instead_of_a_list_is_refused(self):
        store, name = self.store(), str(key(1))
        store.save([name], [b"x" * 4096])
        for one in (name, key(1), name.encode()):
            with self.subTest(type(one)), self.assertRaisesRegex(TypeError, "list"):
                store.lookup(one)
        with self.assertRaisesRegex(TypeError, "list"):
            store.save([name], b"x")
        with self.assertRaisesRegex(TypeError, "int"):
            store.lookup([1])
        self.assertEqual(store.lookup((name, key(1))), [4096, 4096], "a tuple is one")

    def test_settings_are_checked(self):
        with self.assertRaisesRegex(ValueError, "either"):
            Store()
        with self.assertRaisesRegex(ValueError, "flie"):
            Store(tiers=[{"type": "flie"}])
        with self.assertRaisesRegex(TypeError, "colour"):
            kvtier._native.Tiers({"tiers": []}, colour=1)


class Async(Case):
    def test_batches_of_an_event_loop(self):
        store = self.store()

        async def work(n):
            data, into = os.urandom(MIB), bytearray(MIB)
            self.assertEqual(await store.asave([key(n)], [data]), [True])
            self.assertEqual(await store.alookup([key(n), key(99)]), [MIB, None])
            self.assertEqual(await store.aload([key(n)], [into], prefetch=n % 2 == 1), [MIB])
            self.assertEqual(bytes(into), data)
            self.assertEqual(await store.aremove([key(n)]), [True])

        async def all_of_it():
            await asyncio.gather(*(work(n) for n in range(16)))
            with self.assertRaises(errors.Invalid):
                await store.alookup(["no key"])

        for _ in range(2):
            asyncio.run(all_of_it())

    def test_a_cancelled_waiter_gets_no_result_and_harms_no_other(self):
        store = self.store()

        async def work():
            save = asyncio.ensure_future(store.asave([key(1)], [b"x" * (16 * MIB)]))
            await asyncio.sleep(0)
            save.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await save
            return await store.asave([key(2)], [b"y" * (16 * MIB)])

        self.assertEqual(asyncio.run(work()), [True])


class Registered(Case):
    def test_registered_memory_is_used_and_registered_once(self):
        tiers = kvtier._native.Tiers({"tiers": [{"type": "file", "path": self.dir, "bytes": 64 * MIB, "free_min": 0, **ENGINE}]})
        self.addCleanup(tiers.close)
        arena, other = mmap.mmap(-1, 4 * MIB), mmap.mmap(-1, MIB)
        views = [memoryview(arena)[n * MIB : (n + 1) * MIB] for n in range(4)]
        [said] = tiers.register(ctypes.addressof(ctypes.c_char.from_buffer(arena)), len(arena))
        names = [f"m@00000000@0@{n:02x}" for n in range(5)]
        counters = lambda: [dict(tiers.status()[2])[name] for name in ("fixed_requests", "unfixed_requests", "registered_bytes")]
        fault, answers = tiers.save(names[:4], views)
        self.assertEqual((fault, answers), (None, [1] * 4))
        fixed, unfixed, registered = counters()
        if "4194304 bytes registered" not in said or "unregistered" in said:
            # Without io_uring, or at the limit of locked memory, the outcome says so, and transfers work.
            self.assertRegex(said, "no registration|would not pin|keeps no table")
            self.assertEqual(fixed, 0)
            return
        self.assertEqual(registered, 4 * MIB)
        self.assertGreaterEqual(fixed, 4, "each chunk's bytes")
        self.assertLessEqual(unfixed, 4, "the footers, which are no bytes of the caller's")
        self.assertEqual(tiers.load(names[:4], views), (None, [MIB] * 4))
        self.assertGreaterEqual(counters()[0], fixed + 4)
        before = counters()
        self.assertEqual(tiers.save(names[4:], [other]), (None, [1]))
        after = counters()
        self.assertEqual((after[0], after[2]), (before[0], registered), "other memory does not use the registration")
        self.assertGreater(after[1], before[1] + 1)


try:
    import numpy
except ImportError:
    numpy = None


@unittest.skipUnless(numpy, "without NumPy")
class Arrays(Case):
    def test_arrays_are_saved_and_loaded_in_place(self):
        store = self.store()
        data = numpy.arange(1 << 18, dtype=numpy.float32).reshape(512, 512)
        into = numpy.zeros_like(data)
        store.save([key(1)], [data])
        store.load([key(1)], [into])
        self.assertTrue((data == into).all())
        with self.assertRaisesRegex(ValueError, "contiguous"):
            store.save([key(2)], [data[:, ::2]])

    def test_page_aligned_arrays_are_not_copied(self):
        store = self.store()
        data = numpy.frombuffer(mmap.mmap(-1, MIB), dtype=numpy.uint16)
        data[:] = numpy.arange(len(data))
        into = numpy.frombuffer(mmap.mmap(-1, MIB), dtype=numpy.uint16)
        store.save([key(1)], [data])
        self.assertEqual(store.load([key(1)], [into]), [MIB])
        self.assertTrue((data == into).all())
        counters = store.status().counters
        self.assertEqual((counters["copied_bounce_bytes"], counters["copied_tail_bytes"]), (0, 0))


if __name__ == "__main__":
    unittest.main()
