"""Hybrid models: a page counts if every pool has what its hit policy needs."""

import itertools
import random

from host_pools import TOKENS, indexer_pool, indices, logical_pool, mha_pool, mla_pool, read
from hybrid_case import HybridCase, all_pages, trailing
from scene import KV, Policy, Transfer, key, keys


class Pools(HybridCase):
    def test_bytes_of_every_pool(self):
        backend = self.open_hybrid()
        self.store(backend, [3, 1, 4])
        for name, pool in self.pools.items():
            tokens = self.tokens.get(name, TOKENS)
            self.assertEqual(self.store_pool(backend, name, [3, 1, 4]), {name: [True] * 3})
            before = [read(pool, n, tokens) for n in (3, 1, 4)]
            rows = [10, 12, 9]
            done = backend.batch_get_v2([Transfer(name, indices(rows, tokens), keys=keys([3, 1, 4]))])
            self.assertEqual(done, {name: [True] * 3})
            self.assertEqual([read(pool, row, tokens) for row in rows], before)

    def test_all_pages_and_the_kv_decide_together(self):
        backend = self.open_hybrid()
        self.store(backend, range(8))
        self.assertEqual(self.hits(backend, 10, all_pages("indexer")), (0, {"kv": 8}, []))
        self.store_pool(backend, "indexer", [0, 1, 2, 4, 5])
        self.assertEqual(self.hits(backend, 10, all_pages("indexer")), (3, {"kv": 8, "indexer": 3}, [1, 2, 3]))
        self.assertEqual(self.hits(backend, 10), (8, {"kv": 8}, list(range(1, 9))))

    def test_trailing_pages_leave_holes(self):
        backend = self.open_hybrid()
        self.store(backend, range(8))
        self.store_pool(backend, "mamba", [2, 4])
        self.assertEqual(self.hits(backend, 8, trailing("mamba")), (5, {"kv": 8, "mamba": 5}, [3, 5]))
        self.store_pool(backend, "swa", [1, 2, 3])
        self.assertEqual(self.hits(backend, 8, trailing("swa", 2)), (4, {"kv": 8, "swa": 4}, [3, 4]))
        self.assertEqual(self.hits(backend, 8, trailing("swa", 2), trailing("mamba")), (3, {"kv": 8, "swa": 4, "mamba": 5}, [3]))
        # A window longer than the prefix needs all of it.
        self.store_pool(backend, "swa", [0])
        self.assertEqual(self.hits(backend, 8, trailing("swa", 6)), (4, {"kv": 8, "swa": 4}, [1, 2, 3, 4]))

    def test_the_lengths_are_those_of_the_definition(self):
        backend, dice = self.open_hybrid(), random.Random(7)
        self.store(backend, range(10))
        stored = {name: {n for n in range(12) if dice.random() < 0.7} for name in self.pools}
        for name, numbers in stored.items():
            self.store_pool(backend, name, sorted(numbers))
        for window, names in itertools.product((1, 2, 3), itertools.permutations(self.pools, 2)):
            first, second = names
            expected = [
                length
                for length in range(1, 11)
                if all(n in stored[first] for n in range(length)) and all(n in stored[second] for n in range(max(0, length - window), length))
            ]
            found = self.hits(backend, 12, all_pages(first), trailing(second, window))
            self.assertEqual((found[0], found[2]), (expected[-1] if expected else 0, expected), (window, names))

    def test_another_form_of_the_pages_reports_and_limits_nothing(self):
        backend = self.open_hybrid()
        self.store(backend, range(8))
        self.store_pool(backend, "swa", [20, 21, 22])
        groups = Transfer("swa", hit_policy=Policy.BLOCK_GROUPS, keys=keys([20, 21, 22, 23]), block_pages=4, group_pages=2)
        self.assertEqual(self.hits(backend, 8, groups), (8, {"kv": 8, "swa": 4}, list(range(1, 9))))

    def test_a_model_without_kv_of_its_own(self):
        backend = self.open(logical_pool(), pools=self.pools, is_mla_model=True)
        self.assertEqual(backend.batch_set_v1(keys(range(3)), indices(range(3))), [True] * 3)
        self.assertEqual(backend.batch_get_v1(keys(range(3)), indices(range(3))), [True] * 3)
        self.assertEqual(backend.batch_exists(keys(range(3))), 0)
        self.store_pool(backend, "swa", [0, 1], Policy.ALL_PAGES)
        self.assertEqual(self.hits(backend, 3, all_pages("swa")), (2, {"kv": 3, "swa": 2}, [1, 2]))

    def test_a_pool_without_pages_needs_the_calls_without_copies(self):
        with self.assertRaisesRegex(ValueError, "interface_v1"):
            self.open(logical_pool(), pools=self.pools, is_mla_model=True, params={"interface_v1": 0})

    def test_a_pool_that_sglang_stores_on_one_rank_only_is_warned_of(self):
        for name, is_warned in (("draft", True), ("indexer", False)):
            pools = {name: mha_pool() if name == "draft" else indexer_pool()}
            with self.assertLogs("kvtier", "INFO") as logged:
                self.open(mla_pool(), pools=pools, is_mla_model=True, tp_size=2)
            self.assertEqual(any("on one of 2 ranks only" in line for line in logged.output), is_warned, name)

    def test_lookups_see_what_the_copying_calls_stored(self):
        split = dict(tp_lcm_size=2, should_split_heads=True, is_page_first_layout=False)
        backend = self.open(mha_pool("page_head"), params={"interface_v1": 0}, **split)
        page = backend.mem_pool_host.get_dummy_flat_data_page()
        self.assertTrue(backend.batch_set(keys([0]), [page]))
        self.assertEqual(backend.batch_exists(keys([0])), 1)
        self.assertEqual(self.hits(backend, 1)[0], 1)

    def test_a_damaged_page_of_one_pool_ends_the_prefix_until_it_is_stored_again(self):
        backend = self.open_hybrid()
        self.store(backend, range(4))
        before = set(self.files())
        self.store_pool(backend, "indexer", range(4))
        backend.close()
        for path in set(self.files()) - before:
            with open(path, "r+b") as file:
                file.write(b"!" * 64)
        backend = self.open_hybrid()
        self.assertEqual(self.hits(backend, 4, all_pages("indexer"))[0], 4)
        rows = indices(range(10, 14))
        self.assertEqual(backend.batch_get_v2([Transfer("indexer", rows, keys=keys(range(4)))]), {"indexer": [False] * 4})
        self.assertEqual(self.hits(backend, 4, all_pages("indexer"))[0], 0)
        # What SGLang computes again it stores again: the pages of the KV are there.
        self.assertEqual(backend.batch_set_v1(keys(range(4)), indices(range(4))), [True] * 4)
        self.assertEqual(self.store_pool(backend, "indexer", range(4)), {"indexer": [True] * 4})
        self.assertEqual(self.hits(backend, 4, all_pages("indexer"))[0], 4)

    def test_a_pool_that_is_not_registered_has_nothing(self):
        backend = self.open_hybrid()
        self.store(backend, range(2))
        with self.assertLogs("kvtier", "WARNING"):
            self.assertEqual(self.hits(backend, 2, all_pages("draft")), (0, {}, []))
            backend._core._last_log = 0
            self.assertEqual(backend.batch_get_v2([Transfer("draft", indices([0]), keys=[key(0)])]), {"draft": [False]})

    def test_pools_come_later_and_change_no_namespace(self):
        backend = self.open(mla_pool(), is_mla_model=True)
        before = backend._pools["kv"].shards[0].digest
        backend.register_mem_host_pool_v2(self.pools["indexer"], "indexer")
        # The controller registers the anchor twice.
        backend.register_mem_host_pool_v2(self.pool(backend), KV)
        self.assertEqual(backend._pools["kv"].shards[0].digest, before)
        self.assertEqual(self.store_pool(backend, "indexer", [1]), {"indexer": [True]})
