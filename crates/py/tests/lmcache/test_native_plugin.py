"""`kvtier.Connector` under LMCache's own `native_plugin`: its factory, its wrapper."""

import unittest

from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import NativeConnectorL2Adapter
from scene import MIB, Case, adapter, content, key

SIZES = [4096, 40_000, MIB, 4 * MIB - 512]


class NativePlugin(Case):
    def opened(self, **more):
        tiers = [{"type": "file", "path": self.dir, "bytes": 48 * MIB, "free_min": 0}]
        spec = {"type": "native_plugin", "module_path": "kvtier", "class_name": "Connector"}
        a = adapter({**spec, "adapter_params": {"tiers": tiers}, **more}, self.arena)
        self.assertIs(type(a), NativeConnectorL2Adapter)
        return a

    def test_chunks_of_every_size_are_found_loaded_and_deleted(self):
        a = self.opened()
        self.addCleanup(a.close)
        for group, size in enumerate(SIZES):
            keys = [key(n, group=group) for n in range(4)]
            stored = self.store(a, keys, [self.arena.obj(size, n) for n in range(4)])
            self.assertTrue(stored.is_successful())
            self.assertEqual(self.lookup(a, [*keys, key(99, group=group)]), [True] * 4 + [False])
            into = [self.arena.obj(size, 200) for _ in keys]
            self.assertEqual(self.load(a, keys, into), [True] * 4)
            for n, obj in enumerate(into):
                self.assertEqual(bytes(obj.byte_array), content(n, size))
            a.submit_unlock(keys)
            a.delete(keys)
            self.assertEqual(self.lookup(a, keys), [False] * 4)
        self.assertEqual(a.get_usage().total_bytes_used, 0)

    def test_a_salted_key_is_a_key_of_its_own(self):
        a = self.opened()
        self.addCleanup(a.close)
        self.store(a, [key(1, "alice")], [self.arena.obj(MIB, 1)])
        self.assertEqual(self.lookup(a, [key(1), key(1, "alice"), key(1, "bob")]), [False, True, False])

    def test_found_chunks_are_held_until_they_are_loaded(self):
        a = self.opened()
        self.addCleanup(a.close)
        self.store(a, [key(1)], [self.arena.obj(MIB, 1)])
        self.assertEqual(self.lookup(a, [key(1)]), [True])
        a.delete([key(1)])
        into = self.arena.obj(MIB)
        self.assertEqual(self.load(a, [key(1)], [into]), [True], "LMCache's delete does not skip what it locked; we do")
        a.delete([key(1)])
        self.assertEqual(self.lookup(a, [key(1)]), [False])

    def test_the_cap_holds_and_a_restart_finds_the_chunks(self):
        a = self.opened()
        for n in range(80):
            self.assertTrue(self.store(a, [key(n)], [self.arena.obj(MIB, n % 200)]).is_successful())
        keys = [key(n) for n in range(80)]
        there = self.lookup(a, keys)
        self.assertTrue(30 <= sum(there) <= 48, sum(there))
        a.close()
        again = self.opened()
        self.addCleanup(again.close)
        self.assertEqual(self.lookup(again, keys), there)
        last = max(n for n in range(80) if there[n])
        into = self.arena.obj(MIB)
        self.assertEqual(self.load(again, [key(last)], [into]), [True])
        self.assertEqual(bytes(into.byte_array), content(last % 200, MIB))

    def test_a_second_cap_is_refused_at_the_start(self):
        with self.assertRaisesRegex(ValueError, "max_capacity_gb"):
            self.opened(max_capacity_gb=1)
        with self.assertRaisesRegex(ValueError, "eviction"):
            self.opened(eviction={"eviction_policy": "LRU"})


if __name__ == "__main__":
    unittest.main()
