"""The connector under the contract of LMCache's `native_plugin`."""

import ctypes
import dataclasses
import mmap
import os
import socket
import tempfile
import unittest
import urllib.request

import kvtier
from contract import Wrapper

MIB = 1 << 20
# Memcheck does not get on with io_uring: a thread that waits in it holds up all others.
ENGINE = {"engine": os.environ["KVTIER_ENGINE"]} if "KVTIER_ENGINE" in os.environ else {}


def key(n, model="llama/7b", salt=""):
    return f"{model}@00010000@0@{n:064x}" + (f"@{salt}" if salt else "")


@dataclasses.dataclass(frozen=True)
class ObjectKey:
    """The fields of LMCache's."""

    chunk_hash: bytes
    model_name: str = "llama/7b"
    kv_rank: int = 0x10000
    object_group_id: int = 0
    cache_salt: str = ""


def aligned(size):
    """Memory like that of LMCache's L1: aligned to pages, seen through ctypes."""
    memory = mmap.mmap(-1, size)
    return memoryview((ctypes.c_ubyte * size).from_buffer(memory))


def filled(n, size=MIB):
    view = aligned(size)
    view.cast("B")[:] = bytes([n % 251]) * (size - 8) + n.to_bytes(8, "little")
    return view


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(self.dir.cleanup)

    def client(self, bytes_max=64 * MIB, **more):
        return kvtier.Connector(tiers=[{"type": "file", "path": self.dir.name, "bytes": bytes_max, **ENGINE}], **more)

    def wrapped(self, **more):
        wrapper = Wrapper(self.client(**more))
        self.addCleanup(wrapper.close)
        return wrapper


class Contract(Case):
    def test_saved_chunks_are_found_loaded_and_deleted(self):
        w = self.wrapped()
        keys = [key(n) for n in range(8)]
        self.assertEqual(w.set(keys, [filled(n) for n in range(8)])[0], True)
        self.assertEqual(w.exists([*keys, key(99)]), (True, "", [True] * 8 + [False]))
        into = [aligned(MIB) for _ in keys]
        self.assertEqual(w.get(keys, into), (True, "", [True] * 8))
        for n, view in enumerate(into):
            self.assertEqual(view.tobytes(), filled(n).tobytes())
        self.assertEqual(w.delete(keys[:4]), (True, "", [True] * 4))
        self.assertEqual(w.exists(keys)[2], [False] * 4 + [True] * 4)

    def test_keys_as_objects_are_the_same_as_their_names(self):
        w = self.wrapped()
        objects = [ObjectKey(n.to_bytes(32, "big"), cache_salt=salt) for n in range(4) for salt in ("", "alice")]
        names = [key(n, salt=salt) for n in range(4) for salt in ("", "alice")]
        for of_saving, of_loading in [(objects, names), (names, objects)]:
            self.assertEqual(w.set(of_saving, [filled(n) for n in range(8)])[0], True)
            into = [aligned(MIB) for _ in names]
            self.assertEqual(w.get(of_loading, into), (True, "", [True] * 8))
            self.assertEqual([view.tobytes() for view in into], [filled(n).tobytes() for n in range(8)])
            self.assertEqual(w.delete(of_loading), (True, "", [True] * 8))
        bad = [ObjectKey(b"1", model_name="a@b"), ObjectKey(b"1", cache_salt="a/b"), ObjectKey(b"1" * 4096)]
        for wrong in bad:
            ok, error, _ = w.set([wrong], [filled(1)])
            self.assertFalse(ok)
            self.assertIn("none of LMCache's", error)

    def test_a_miss_is_no_error_and_touches_no_byte(self):
        w = self.wrapped()
        into = filled(7)
        self.assertEqual(w.get([key(1)], [into]), (True, "", [False]))
        self.assertEqual(into.tobytes(), filled(7).tobytes())

    def test_a_chunk_of_another_length_is_a_miss(self):
        w = self.wrapped()
        w.set([key(1)], [filled(1)])
        for size in (MIB - 4096, MIB + 4096):
            with self.assertLogs("kvtier"):
                ok, error, each = w.get([key(1)], [aligned(size)])
            self.assertEqual((ok, each), (False, [False]))
            self.assertIn(f"{MIB} bytes", error)
            self.assertIn(str(size), error)
        self.assertEqual(w.get([key(1)], [aligned(MIB)])[2], [True])

    def test_an_invalid_key_fails_alone_but_fails_a_set(self):
        w = self.wrapped()
        with self.assertLogs("kvtier") as log:
            ok, error, each = w.get(["no key", key(1)], [aligned(MIB), aligned(MIB)])
            self.assertEqual((ok, each), (False, [False, False]))
            self.assertIn("no key", error)
            self.assertEqual(w.set([key(1), "no key"], [filled(1), filled(2)])[0], False)
        self.assertIn("no key", log.output[0])
        self.assertEqual(w.get([key(1)], [aligned(MIB)])[2], [True], "the other was saved")

    def test_salts_are_separate(self):
        w = self.wrapped()
        w.set([key(1, salt="a")], [filled(1)])
        self.assertEqual(w.exists([key(1), key(1, salt="a"), key(1, salt="b")])[2], [False, True, False])

    def test_memory_that_is_not_aligned_is_bounced(self):
        w = self.wrapped()
        data = bytearray(os.urandom(MIB + 1))
        self.assertTrue(w.set([key(1)], [memoryview(data)[1:]])[0])
        into = bytearray(MIB + 1)
        self.assertEqual(w.get([key(1)], [memoryview(into)[1:]])[2], [True])
        self.assertEqual(into[1:], data[1:])

    def test_found_keys_are_held_until_they_are_loaded(self):
        w = self.wrapped()
        w.set([key(1), key(2)], [filled(1), filled(2)])
        w.exists([key(1), key(2)])
        self.assertEqual(w.delete([key(1), key(2)])[2], [False, False])
        w.get([key(1)], [aligned(MIB)])
        self.assertEqual(w.delete([key(1), key(2)])[2], [True, False], "the other one is not loaded yet")
        w.get([key(2)], [aligned(MIB)])
        self.assertEqual(w.delete([key(2)])[2], [True])

    def test_the_capacity_holds_and_a_restart_finds_the_chunks(self):
        w = self.wrapped(bytes_max=10 * MIB)
        for n in range(30):
            self.assertTrue(w.set([key(n)], [filled(n)])[0])
        there = w.exists([key(n) for n in range(30)])[2]
        self.assertTrue(5 <= sum(there) <= 10, there)
        w.close()
        again = self.wrapped(bytes_max=10 * MIB)
        self.assertEqual(again.exists([key(n) for n in range(30)])[2], there)

    def test_metrics_are_served_at_the_logged_address(self):
        with self.assertLogs("kvtier", "INFO") as log:
            w = self.wrapped(metrics="127.0.0.1:0")
        w.set([key(1)], [filled(1)])
        w.exists([key(1), key(2)])
        [line] = [line for line in log.output if "metrics at" in line]
        with urllib.request.urlopen(line.rpartition(" ")[2], timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        # The tier is called otherwise where these tests run over a bucket.
        received = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines if line.startswith("kvtier_lookup_")}
        self.assertEqual(received, {"kvtier_lookup_keys_total": "2", "kvtier_lookup_hits_total": "1"})

    def test_a_configuration_may_be_a_file(self):
        path = os.path.join(self.dir.name, "kvtier.json")
        with open(path, "w") as file:
            file.write('{"tiers": [{"type": "host", "bytes": "8MiB"}]}')
        w = Wrapper(kvtier.Connector(config=path))
        self.addCleanup(w.close)
        self.assertTrue(w.set([key(1)], [filled(1)])[0])
        self.assertEqual(w.get([key(1)], [aligned(MIB)])[2], [True])


class Refusals(Case):
    def test_wrong_settings_are_errors_with_name_and_place(self):
        spec = {"type": "file", "path": self.dir.name, "bytes": 1}
        for keywords, says in [
            ({}, "tiers"),
            ({"tiers": [], "config": "x"}, "either"),
            ({"tiers": []}, "empty"),
            ({"tiers": [{"type": "flie"}]}, "flie"),
            ({"tiers": [{**spec, "byts": 3}]}, "byts"),
            ({"tiers": [spec], "timeout_seconds": 0}, "timeout_seconds"),
            ({"tiers": [spec], "timeout_seconds": float("nan")}, "timeout_seconds"),
        ]:
            with self.subTest(keywords), self.assertRaisesRegex(ValueError, says):
                kvtier.Connector(**keywords)
        with self.assertRaisesRegex(OSError, "nothere"):
            kvtier.Connector(config="/nothere")

    def test_keys_of_the_other_mode_are_refused(self):
        source = {"tiers": [{"type": "host", "bytes": MIB}]}
        with self.assertRaisesRegex(ValueError, "engine_keys = True: .*multi-process mode alone"):
            kvtier._native.Connector(source, engine_keys=True)
        kvtier._native.Connector(source, engine_keys=False).close()

    def test_a_used_port_disables_metrics_and_not_the_tiers(self):
        with socket.create_server(("127.0.0.1", 0)) as taken, self.assertLogs("kvtier", "ERROR") as log:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            w = self.wrapped(metrics=address)
        self.assertRegex("\n".join(log.output), f"cannot serve metrics at .*{address}.*without metrics")
        self.assertTrue(w.set([key(1)], [filled(1)])[0])

    def test_two_capacities_are_refused(self):
        class Outer:
            adapter_params = {"tiers": [{"type": "host", "bytes": 1 << 20}]}
            max_capacity_gb = 10.0
            eviction_config = None

        def make(config):
            return kvtier.Connector(**config.adapter_params)

        with self.assertRaisesRegex(ValueError, "max_capacity_gb"):
            make(Outer())
        Outer.max_capacity_gb, Outer.eviction_config = 0, object()
        with self.assertRaisesRegex(ValueError, "eviction"):
            make(Outer())
        Outer.eviction_config = None
        make(Outer()).close()

    def test_buffers_that_cannot_be_borrowed_are_an_error(self):
        w = self.wrapped()
        for keys, bufs in [
            ([key(1)], [b"read only"]),
            ([key(1)], [memoryview(bytearray(16))[::2]]),
            ([key(1)], [object()]),
            ([key(1), key(2)], [aligned(MIB)]),
        ]:
            with self.subTest(bufs), self.assertLogs("kvtier"):
                ok, error, each = w.get(keys, bufs)
                self.assertEqual((ok, each), (False, [False] * len(keys)))
                self.assertTrue(error)

    def test_an_empty_batch_completes(self):
        w = self.wrapped()
        self.assertEqual(w.set([], [])[0], True)
        self.assertEqual(w.get([], []), (True, "", []))
        self.assertEqual(w.exists([]), (True, "", []))
        self.assertEqual(w.delete([]), (True, "", []))


if __name__ == "__main__":
    unittest.main()
