"""Every layout of a host pool, byte for byte: pages as scattered parts of one chunk, without copies."""

import numpy as np
from host_pools import HEADS, LAYOUTS, MLA_LAYOUTS, TOKENS, fill, indices, mha_pool, mla_pool, read, window_pool
from real_sglang import torch
from scene import Case, Policy, Transfer, config, key, keys

from kvtier.sglang import _host_memory


class Layouts(Case):
    def assert_moves(self, backend):
        pool = self.pool(backend)
        self.assertEqual(backend.batch_exists(keys(range(6))), 0)
        self.assertEqual(self.store(backend, range(6), [4, 0, 7, 2, 9, 1]), [True] * 6)
        self.assertEqual(backend.batch_exists(keys(range(8))), 6)
        guard = read(pool, 16)
        self.assertEqual(self.load(backend, [3, 5, 0], [20, 3, 11]), ([True] * 3, [True] * 3))
        self.assertEqual(read(pool, 16), guard, "a page beside was written")

    def test_every_layout_of_heads(self):
        for layout in LAYOUTS:
            with self.subTest(layout):
                self.assert_moves(self.open(mha_pool(layout)))

    def test_every_layout_of_latents(self):
        for layout in MLA_LAYOUTS:
            with self.subTest(layout):
                self.assert_moves(self.open(mla_pool(layout), is_mla_model=True))

    def test_a_page_is_one_chunk(self):
        for layout in LAYOUTS:
            with self.subTest(layout):
                before = len(self.files())
                backend = self.open(mha_pool(layout))
                self.store(backend, range(100, 103))
                self.assertEqual(len(self.files()) - before, 3)

    def test_a_layout_never_reads_the_bytes_of_another(self):
        for layout in LAYOUTS:
            backend = self.open(mha_pool(layout))
            self.assertEqual(backend.batch_exists(keys([1])), 0, layout)
            self.store(backend, [1])
            self.assertEqual(backend.batch_exists(keys([1])), 1)
            backend.close()

    def test_the_calls_with_tensors_and_those_without_copies_have_the_same_bytes(self):
        pools = [mha_pool(layout) for layout in LAYOUTS if layout != "page_unified"]
        for pool in [*pools, mla_pool("layer_first"), mla_pool("page_first")]:
            with self.subTest(type(pool).__name__, layout=pool.layout):
                backend = self.open(pool, is_mla_model=hasattr(pool, "kv_lora_rank"))
                self.store(backend, [1])
                flat = pool.get_data_page(0, flat=True)
                page = backend.get(key(1))
                self.assertTrue(np.array_equal(page.view(torch.uint8).numpy(), flat.view(torch.uint8).numpy()))
                # And the other way.
                fill(pool, 2, 2)
                value = pool.get_data_page(2 * TOKENS, flat=True)
                self.assertTrue(backend.set(key(2), value))
                self.assertEqual(self.load(backend, [2], [5]), ([True], [True]))

    def test_the_places_of_a_page_are_proven_to_be_those_of_its_flat_form(self):
        for layout in ("page_first", "page_first_direct", "page_head", "layer_first"):
            self.assertEqual(_host_memory.PageMap(mha_pool(layout)).order, "flat")
        # The parts of a layer come in turn, and a flat page has all keys before all values.
        places = _host_memory.PageMap(mha_pool("layer_first"))._places
        self.assertEqual(places, [0, 2, 4, 1, 3, 5])

    def test_the_memory_is_registered_once(self):
        for pool in (mha_pool(), mha_pool("layer_first"), mla_pool()):
            self.assertEqual([one.data_ptr() for one in _host_memory.buffers(pool)], [pool.kv_buffer.data_ptr()])
        self.assertEqual(len(_host_memory.buffers(window_pool("layer_first"))), 3)

    def test_a_page_of_another_number_of_indices_is_refused_and_nothing_moves(self):
        backend = self.open()
        with self.assertLogs("kvtier", "WARNING"):
            self.assertEqual(backend.batch_set_v1(keys(range(3)), indices([0, 1])), [False] * 3)
        self.assertEqual(self.files(), [])

    def test_memory_outside_of_the_pools_is_refused(self):
        backend = self.open()
        other = mha_pool()
        backend._pools["kv"].pages.pool = other
        with self.assertLogs("kvtier", "WARNING"):
            self.assertEqual(backend.batch_set_v1([key(1)], indices([0])), [False])


class SplitHeads(Case):
    """Engines with other sizes of tensor parallelism share pages whose heads are split."""

    def open_rank(self, rank, size, lcm, heads):
        pool = mha_pool("page_head", heads)
        return self.open(pool, tp_rank=rank, tp_size=size, tp_lcm_size=lcm, should_split_heads=lcm > size, is_page_first_layout=False)

    def heads(self, pool, page, first, count):
        """The bytes of some heads of a page: its keys, then its values."""
        part = pool.kv_buffer[:, page, first : first + count]
        return part.contiguous().view(torch.uint8).numpy().tobytes()

    def test_one_rank_stores_and_two_load_and_the_other_way(self):
        whole = self.open_rank(0, 1, 2, HEADS)
        halves = [self.open_rank(rank, 2, 2, HEADS // 2) for rank in range(2)]
        self.assertEqual(self.store(whole, range(5)), [True] * 5)
        self.assertEqual(len(self.files()), 10)
        for rank, half in enumerate(halves):
            self.eventually(lambda: half.batch_exists(keys(range(6))) == 5)
            self.assertEqual(half.batch_get_v1(keys(range(5)), indices(range(10, 15))), [True] * 5)
            for n in range(5):
                expected = self.heads(self.pool(whole), n, rank * HEADS // 2, HEADS // 2)
                self.assertEqual(self.heads(self.pool(half), 10 + n, 0, HEADS // 2), expected)
        for half in halves:
            self.assertEqual(whole.batch_exists(keys([50])), 0)
            self.store(half, [50])
        self.eventually(lambda: whole.batch_exists(keys([50])) == 1)
        self.assertEqual(whole.batch_get_v1(keys([50]), indices([9])), [True])
        for rank, half in enumerate(halves):
            self.assertEqual(self.heads(self.pool(whole), 9, rank * HEADS // 2, HEADS // 2), self.heads(self.pool(half), 0, 0, HEADS // 2))

    def test_a_page_needs_all_its_shards(self):
        whole = self.open_rank(0, 1, 4, HEADS)
        self.store(whole, range(3))
        pool = whole._pools["kv"]
        pool.shards[2].remove(keys([1]))
        self.assertEqual(whole.batch_exists(keys(range(3))), 1)
        self.assertEqual(pool.present(keys(range(3))), [True, False, True])
        self.assertEqual(whole.batch_get_v1(keys(range(3)), indices(range(3))), [True, False, True])


class Ranks(Case):
    def test_ranks_with_heads_have_pages_of_their_own(self):
        first = self.open(tp_rank=0, tp_size=2)
        self.store(first, [1])
        # Opened now, it has what is in the directory.
        second = self.open(tp_rank=1, tp_size=2)
        self.assertEqual([one.batch_exists(keys([1])) for one in (first, second)], [1, 0])
        fill(self.pool(second), 0, 2)
        other = read(self.pool(second), 0)
        second.batch_set_v1(keys([1]), indices([0]))
        self.assertEqual(second.batch_get_v1(keys([1]), indices([3])), [True])
        self.assertEqual(read(self.pool(second), 3), other)
        self.assertEqual(self.load(first, [1], [5]), ([True], [True]))

    def test_of_ranks_with_latents_one_writes_and_all_read(self):
        ranks = [self.open(mla_pool(), is_mla_model=True, tp_rank=rank, tp_size=2) for rank in range(2)]
        self.assertEqual(self.store(ranks[1], [1]), [True])
        self.assertEqual(self.files(), [])
        self.assertTrue(ranks[1].set(key(1), self.pool(ranks[1]).get_data_page(0)))
        self.assertEqual(self.files(), [])
        self.store(ranks[0], [1])
        self.eventually(lambda: [one.batch_exists(keys([1])) for one in ranks] == [1, 1])
        self.assertEqual(self.load(ranks[1], [1], [5]), ([True], [True]))

    def test_each_shard_of_the_tokens_has_one_writer(self):
        change = dict(is_mla_model=True, tp_size=4, dcp_size=2, logical_page_size=2 * TOKENS)
        ranks = [self.open(mla_pool(dcp_size=2, dcp_rank=rank % 2), tp_rank=rank, dcp_rank=rank % 2, **change) for rank in range(4)]
        self.assertEqual([config(tp_rank=rank, dcp_rank=rank % 2, **change).is_storage_writer for rank in range(4)], [True, True, False, False])
        logical = indices([0], 2 * TOKENS)
        for rank, backend in enumerate(ranks):
            self.pool(backend).kv_buffer.view(torch.uint8).numpy()[:] = 10 + rank
            backend.batch_set_v1([key(1)], logical)
        self.assertEqual(len(self.files()), 2)
        for rank, backend in enumerate(ranks):
            self.assertEqual(backend.batch_get_v1([key(1)], indices([1], 2 * TOKENS)), [True])
            page = self.pool(backend).kv_buffer[TOKENS : 2 * TOKENS].view(torch.uint8).numpy()
            self.assertEqual(set(page.reshape(-1).tolist()), {10 + rank % 2})


class OtherPools(Case):
    def test_compressed_pools_in_both_layouts(self):
        for layout in ("page_first", "layer_first"):
            with self.subTest(layout):
                pool = window_pool(layout)
                backend = self.open(pools={"swa": pool})
                fill(pool, 3, 1)
                before = read(pool, 3)
                move = lambda page: [Transfer("swa", indices([page]), keys=[key(1)], hit_policy=Policy.TRAILING_PAGES)]
                self.assertEqual(backend.batch_set_v2(move(3)), {"swa": [True]})
                self.assertEqual(backend.batch_get_v2(move(8)), {"swa": [True]})
                self.assertEqual(read(pool, 8), before)
