"""`serde` beside `adapter_params`: LMCache's server encodes chunks in front of the plugin. It makes both adapters here, its own over files and
ours, as its storage manager does."""

import json
import unittest

import test_server
import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, PrefetchTaskSpec
from lmcache.v1.distributed.config import parse_args
from lmcache.v1.distributed.storage_manager import StorageManager
from scene import key

# An odd number of values: frames and casts end within a page and a word.
SHAPE = torch.Size([2, 4, 33, 8, 13])
LAYOUT = MemoryLayoutDesc([SHAPE], [torch.bfloat16])
FP8 = {"type": "fp8"}


def values(n):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(n)).mul(9).to(torch.bfloat16)


class Serde(test_server.Server):
    def spec(self, ours):
        theirs = {"type": "fs", "base_path": self.dir}
        plugin = {"type": "plugin", "module_path": "kvtier.lmcache", "class_name": "KvtierL2Adapter"}
        return {**plugin, "adapter_params": theirs} if ours else theirs

    def opened(self, ours, serde):
        spec = {**self.spec(ours), **({"serde": serde} if serde else {})}
        words = ["--l1-size-gb", "0.0625", "--no-l1-use-lazy", "--eviction-policy", "LRU"]
        manager = StorageManager(parse_args([*words, "--l2-adapter", json.dumps(spec)]))
        self.addCleanup(self.close, manager)
        return manager

    def saved(self, ours, serde, keys):
        manager = self.opened(ours, serde)
        written = manager.reserve_write(keys, LAYOUT)
        for n, k in enumerate(keys):
            written[k].tensor.copy_(values(n))
        manager.finish_write(keys)
        adapter = next(iter(manager._l2_adapters.values()))
        self.until(lambda: all(self.lookup_quietly(adapter, keys)))
        self.close(manager)

    def loaded(self, ours, serde, keys):
        """The chunks that were found, from the first to the first miss, and how many."""
        manager = self.opened(ours, serde)
        handle = manager.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys, 0, LAYOUT)]))
        self.assertTrue(manager.wait_prefetch_status(handle, 20))
        count = manager.query_prefetch_status(handle).l2_hit_count
        found = []
        if count:
            with manager.read_prefetched_results(keys[:count]) as objs:
                found = [obj.tensor.clone() for obj in objs]
            manager.finish_read_prefetched(keys[:count])
        self.close(manager)
        return found

    def same(self, found, wanted):
        self.assertEqual(len(found), len(wanted))
        for one, other in zip(found, wanted):
            self.assertTrue(torch.equal(one.view(torch.int16), other.view(torch.int16)))

    def aesgcm(self, master=b"m" * 32, **more):
        with open(f"{self.keys_dir}/{len(master)}-{master[0]}", "wb") as file:
            file.write(master)
        return {"type": "aesgcm", "master_key_path": file.name, **more}

    def setUp(self):
        super().setUp()
        self.base, self.keys_dir = self.dir, self.dir

    def at(self, name):
        self.dir = f"{self.base}/{name}"

    def both_ways(self, serde, wanted):
        keys = [key(n, "alice") for n in range(3)]
        for ours in (False, True):
            self.at(f"{serde['type']}-{ours}")
            self.saved(ours, serde, keys)
            self.same(self.loaded(not ours, serde, keys), wanted)

    def test_fp8_is_lmcaches_cast_bit_for_bit_in_both_directions(self):
        wanted = [values(n).to(torch.float8_e4m3fn).to(torch.bfloat16) for n in range(3)]
        self.assertFalse(torch.equal(wanted[0], values(0)), "lossy")
        self.both_ways(FP8, wanted)

    def test_aesgcm_returns_every_byte_in_both_directions(self):
        self.both_ways(self.aesgcm(), [values(n) for n in range(3)])

    def test_chunks_of_another_serde_are_misses(self):
        keys = [key(n) for n in range(2)]
        kinds = {"none": None, "fp8": FP8, "aesgcm": self.aesgcm()}
        for stored, serde in kinds.items():
            self.at(stored)
            self.saved(True, serde, keys)
            for name, other in kinds.items():
                self.assertEqual(len(self.loaded(True, other, keys)), 2 if name == stored else 0, f"{stored} read as {name}")

    def test_frames_under_another_master_key_are_misses(self):
        keys = [key(1, "alice")]
        self.at("keys")
        self.saved(True, self.aesgcm(), keys)
        self.assertEqual(self.loaded(True, self.aesgcm(b"other" * 8), keys), [])
        self.same(self.loaded(True, self.aesgcm(), keys), [values(0)])


for name in [name for name in vars(test_server.Server) if name.startswith("test_")]:
    setattr(Serde, name, None)


if __name__ == "__main__":
    unittest.main()
