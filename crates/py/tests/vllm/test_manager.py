"""vLLM's own manager of tiers drives the tier: promotions, cascades, resets and the end."""

import unittest

import numpy as np
from scene import CHUNK_TOKENS, STEP_END, Case, Memory, content, keys
from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

PRIMARY_ROWS = 8


class Managed(Case):
    def engine(self, **params):
        """An engine with a small primary tier, which evicts, over a tier of files."""
        memory = Memory(rows=PRIMARY_ROWS)
        primary = CPUPrimaryTierOffloadingManager(num_chunks=PRIMARY_ROWS, mmap_region=memory)
        tier = self.open(memory=memory, **params)
        manager = TieringOffloadingManager(primary, [tier])
        manager.memory, manager.tier = memory, tier
        return manager

    def context(self, manager, numbers=()):
        context = self.request()
        manager.on_new_request(context)
        for at, n in enumerate(numbers):
            context.set_offload_key_position(keys([n])[0], (at + 1) * CHUNK_TOKENS)
        return context

    def step(self, manager):
        manager.on_schedule_end(STEP_END)

    def offload(self, manager, numbers):
        """The GPU's blocks go to the primary tier, and from there to ours."""
        context = self.context(manager, numbers)
        prepared = manager.prepare_store(keys(numbers), context)
        names = {one: n for one, n in zip(keys(numbers), numbers)}
        for one, row in zip(prepared.keys_to_store, prepared.store_spec.chunk_ids):
            manager.memory.array[row] = content(names[one])
        manager.complete_store(prepared.keys_to_store, context)
        while manager.has_pending_work():
            self.step(manager)
        manager.on_request_finished(context)

    def fetch(self, manager, numbers, steps=100_000):
        """What a request of these chunks gets: the rows' contents, up to the first miss; and the steps it took."""
        context = self.context(manager, numbers)
        for step in range(steps):
            found = [manager.lookup(one, context) for one in keys(numbers)]
            if LookupResult.RETRY not in found and LookupResult.HIT_PENDING not in found:
                break
            self.step(manager)
        hits = found.index(LookupResult.MISS) if LookupResult.MISS in found else len(found)
        rows = manager.prepare_load(keys(numbers)[:hits], context).chunk_ids if hits else []
        right = [bool((manager.memory.array[row] == content(n)).all()) for n, row in zip(numbers, rows)]
        if hits:
            manager.complete_load(keys(numbers)[:hits], context)
        manager.on_request_finished(context)
        return right

    def test_what_left_the_primary_tier_comes_back(self):
        manager = self.engine()
        for first in range(0, 40, 4):
            self.offload(manager, range(first, first + 4))
        for first in range(0, 40, 4):
            self.assertEqual(self.fetch(manager, range(first, first + 4)), [True] * 4)
        self.assertEqual(self.fetch(manager, [0, 1, 99]), [True, True])
        manager.shutdown()
        self.assertTrue(manager.memory.map.closed, "the region is unmapped")

    def test_a_chunk_that_is_damaged_is_recomputed_and_the_request_goes_on(self):
        manager = self.engine()
        self.offload(manager, range(4))
        self.offload(manager, range(10, 18))
        for path in self.files():
            with open(path, "r+b") as file:
                file.seek(77)
                file.write(b"\\xff\\x00")
        self.assertEqual(self.fetch(manager, range(4)), [])
        self.offload(manager, range(4))
        self.offload(manager, range(20, 28))
        self.assertEqual(self.fetch(manager, range(4)), [True] * 4)
        manager.shutdown()

    def test_reset_drains_and_the_rows_are_used_again(self):
        manager = self.engine()
        self.offload(manager, range(4))
        self.offload(manager, range(10, 18))
        context = self.context(manager, range(4))
        for one in keys(range(4)):
            manager.lookup(one, context)
        self.step(manager)
        manager.reset_cache()
        if hasattr(manager, "on_reset_flushed"):
            manager.on_reset_flushed()
        manager.memory.array[:] = np.int8(85)
        manager.on_request_finished(context)
        self.assertTrue((manager.memory.array == 85).all())
        # What is on the medium outlives the reset.
        self.assertEqual(self.fetch(manager, range(4)), [True] * 4)
        manager.shutdown()

    def test_stats_and_labels_reach_the_manager(self):
        manager = self.engine()
        self.offload(manager, range(4))
        stats = manager.get_stats()
        self.assertEqual(stats.data["data"]["vllm:kvtier_stored_chunks"], {("file",): 4})
        if hasattr(manager, "config_info"):
            self.assertIn("kvtier_version", manager.config_info()[1])
        manager.shutdown()

    def test_events_reach_the_manager(self):
        manager = self.engine(enable_kv_events=True)
        self.offload(manager, range(4))
        stored = {one for event in manager.take_events() for one in event.keys}
        self.assertEqual(stored, set(keys(range(4))))
        manager.shutdown()


if __name__ == "__main__":
    unittest.main()
