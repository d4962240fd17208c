"""The plugin below LMCache's own storage manager, as `lmcache server` makes it from its command line: its first level, its controllers for
storing, prefetching and eviction."""

import json
import time
import unittest

import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, PrefetchTaskSpec
from lmcache.v1.distributed.config import parse_args
from lmcache.v1.distributed.storage_manager import StorageManager
from scene import MIB, Case, content, key

LAYOUT = MemoryLayoutDesc([torch.Size([MIB])], [torch.uint8])


class Server(Case):
    def params(self):
        return {"tiers": [{"type": "file", "path": self.dir, "bytes": 64 * MIB, "free_min": 0}]}

    def manager(self, plugin, **more):
        spec = {**plugin, "adapter_params": self.params(), **more}
        words = ["--l1-size-gb", "0.0625", "--no-l1-use-lazy", "--eviction-policy", "LRU"]
        manager = StorageManager(parse_args([*words, "--l2-adapter", json.dumps(spec)]))
        self.addCleanup(self.close, manager)
        return manager

    def close(self, manager):
        if manager is not None and not getattr(manager, "closed_here", False):
            manager.closed_here = True
            manager.close()

    def until(self, what, seconds=300):
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if found := what():
                return found
            time.sleep(0.02)
        self.fail("it did not come")

    def store(self, manager, keys):
        written = manager.reserve_write(keys, LAYOUT)
        for n, k in enumerate(keys):
            written[k].byte_array.cast("B")[:] = content(n, MIB)
        manager.finish_write(keys)

    def prefetched(self, manager, keys):
        spec = PrefetchTaskSpec([GroupedObjectKeys(keys, 0, LAYOUT)])
        handle = manager.submit_prefetch_task(spec)
        self.assertTrue(manager.wait_prefetch_status(handle, 20))
        return manager.query_prefetch_status(handle)

    def round(self, plugin):
        keys = [key(n) for n in range(8)]
        manager = self.manager(plugin)
        self.store(manager, keys)
        adapter = next(iter(manager._l2_adapters.values()))
        self.until(lambda: all(self.lookup_quietly(adapter, keys)))
        self.close(manager)
        manager = self.manager(plugin)
        result = self.prefetched(manager, [*keys, key(99)])
        self.assertEqual((result.l1_hit_count, result.l2_hit_count), (0, 8))
        with manager.read_prefetched_results(keys) as objs:
            for n, obj in enumerate(objs):
                self.assertEqual(bytes(obj.byte_array), content(n, MIB))
        manager.finish_read_prefetched(keys)
        adapter = next(iter(manager._l2_adapters.values()))
        adapter.delete(keys)
        self.assertEqual(self.lookup_quietly(adapter, keys), [False] * 8, "prefetching gave its locks back")

    def lookup_quietly(self, adapter, keys):
        """Queries the adapter directly, since the controllers poll the same descriptor."""
        task = adapter.submit_lookup_and_lock_task(keys, {})
        found = []

        def ended():
            bitmap = adapter.query_lookup_and_lock_result(task)
            found.extend([] if bitmap is None else self.bits(bitmap, keys))
            return bitmap is not None

        self.until(ended)
        adapter.submit_unlock([k for k, there in zip(keys, found) if there])
        return found

    def test_stored_chunks_are_prefetched_after_a_restart(self):
        self.round({"type": "plugin", "module_path": "kvtier.lmcache", "class_name": "KvtierL2Adapter"})

    def test_lmcaches_quotas_of_salts_are_enforced(self):
        plugin = {"type": "plugin", "module_path": "kvtier.lmcache", "class_name": "KvtierL2Adapter"}
        eviction = {"eviction_policy": "IsolatedLRU", "trigger_watermark": 0.8, "eviction_ratio": 0.5}
        manager = self.manager(plugin, eviction=eviction)
        manager.quota_manager.set_quota("alice", 4 * MIB)
        manager.quota_manager.set_quota("bob", 64 * MIB)
        alice, bob = [key(n, "alice") for n in range(8)], [key(n, "bob") for n in range(8)]
        self.store(manager, alice)
        self.store(manager, bob)
        adapter = next(iter(manager._l2_adapters.values()))
        self.until(lambda: adapter.get_usage().bytes_by_cache_salt.get("bob", 0) >= 8 * MIB)
        used = lambda: adapter.get_usage().bytes_by_cache_salt.get("alice", 0)
        self.until(lambda: 0 < used() < 3.3 * MIB)
        self.assertTrue(all(self.lookup_quietly(adapter, bob)))


if __name__ == "__main__":
    unittest.main()
