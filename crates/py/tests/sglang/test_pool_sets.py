"""A page of the KV and its pages of the pools that need all pages are one atomic set: all of them are hits, or none is."""

from host_pools import PAGES, indices
from hybrid_case import HybridCase, all_pages, trailing
from scene import Policy, Transfer, key, keys


class Sets(HybridCase):
    def present(self, backend, name, count):
        return backend._pools[name].present(keys(range(count)))

    def store_whole(self, backend, numbers):
        """The pools before the KV, as SGLang's controller does."""
        self.assertEqual(self.store_pool(backend, "indexer", numbers), {"indexer": [True] * len(numbers)})
        self.assertEqual(self.store(backend, numbers, [n % (PAGES - 1) for n in numbers]), [True] * len(numbers))

    def test_a_page_is_a_hit_when_all_its_pools_are_stored(self):
        backend = self.open_hybrid()
        self.store_pool(backend, "indexer", range(4))
        self.assertEqual(self.present(backend, "indexer", 4), [False] * 4)
        self.store(backend, range(3))
        self.assertEqual(self.present(backend, "indexer", 4), [True] * 3 + [False])
        self.assertEqual(self.hits(backend, 4, all_pages("indexer")), (3, {"kv": 3, "indexer": 3}, [1, 2, 3]))

    def test_a_page_that_one_pool_lost_is_a_miss_in_all(self):
        backend = self.open_hybrid()
        self.store_whole(backend, range(5))
        self.assertEqual(backend._pools["kv"].remove([key(3)]), 1)
        self.assertEqual(self.present(backend, "indexer", 5), [True, True, True, False, True])
        self.assertEqual(backend._pools["indexer"].remove([key(1)]), 1)
        self.assertEqual(self.present(backend, "kv", 5), [True, False, True, False, True])
        self.assertEqual(backend.batch_exists(keys(range(5))), 1)
        self.assertEqual(self.load(backend, range(5))[0], [True, False, True, False, True])
        # What is stored again completes the set.
        self.store_whole(backend, [1, 3])
        self.assertEqual(self.hits(backend, 5, all_pages("indexer")), (5, {"kv": 5, "indexer": 5}, [1, 2, 3, 4, 5]))

    def test_eviction_takes_a_page_of_all_pools(self):
        backend = self.open_hybrid(tiers=[self.file(bytes="1MiB")])
        self.store_whole(backend, range(4))
        count = 4
        while count < 400:
            # Pages of the KV that are used again and again, and pages of the indexer that are not.
            self.load(backend, range(4))
            self.store_whole(backend, range(count, count + 8))
            count += 8
        found = self.present(backend, "kv", count)
        self.assertTrue(0 < sum(found) < count, found)
        self.assertEqual(self.present(backend, "indexer", count), found)

    def test_a_pool_whose_store_failed_leaves_no_hit(self):
        backend = self.open_hybrid()
        with self.assertLogs("kvtier", "WARNING"):
            failed = backend.batch_set_v2([Transfer("indexer", indices(range(2)), keys=keys(range(3)), hit_policy=Policy.ALL_PAGES)])
        self.assertEqual(failed, {"indexer": [False] * 3})
        self.store(backend, range(3))
        self.assertEqual(backend.batch_exists(keys(range(3))), 0)
        self.assertEqual(self.hits(backend, 3), (0, {}, []))
        self.store_pool(backend, "indexer", range(3))
        self.assertEqual(backend.batch_exists(keys(range(3))), 3)

    def test_the_copying_calls_make_the_same_sets(self):
        backend = self.open_hybrid(params={"interface_v1": 0})
        self.store_pool(backend, "indexer", range(2))
        page = self.pool(backend).get_data_page(0)
        self.assertTrue(backend.batch_set(keys(range(2)), [page, page]))
        self.assertEqual((backend.batch_exists(keys(range(2))), self.present(backend, "indexer", 2)), (2, [True] * 2))
        backend._pools["indexer"].remove([key(1)])
        self.assertEqual(backend.batch_exists(keys(range(2))), 1)

    def test_pools_of_which_a_prefix_needs_the_last_pages_are_in_no_set(self):
        backend = self.open_hybrid()
        self.store_pool(backend, "mamba", [1, 3])
        self.store_whole(backend, range(4))
        self.assertEqual(self.hits(backend, 4, trailing("mamba"))[2], [2, 4])
        backend._pools["mamba"].remove([key(1)])
        # A longer prefix needs the KV of this page, and not its state.
        self.assertEqual(self.hits(backend, 4, trailing("mamba"), all_pages("indexer"))[2], [4])

    def test_a_rank_that_stores_no_kv_makes_no_set_of_it(self):
        backend = self.open_hybrid(tp_rank=1, tp_size=2)
        self.assertEqual(self.store_pool(backend, "mamba", [0], Policy.ALL_PAGES), {"mamba": [True]})
        self.assertEqual(self.present(backend, "mamba", 1), [True])
