"""Tiers that encode: the type of the elements comes from SGLang's pools."""

from unittest import mock

from adapter_case import normal_bf16
from host_pools import MLA_DIM, _memory, indexer_pool, indices, mamba_pool, mha_pool, mla_pool, read, window_pool
from real_sglang import torch
from scene import Case, keys
from test_identity import published

from kvtier.sglang import _identity

SPLIT = {"encode": ["bf16-split"]}


def fill_normal(pool, page, seed):
    for at, part in enumerate(_memory(pool, page, pool.page_size)):
        part[:] = normal_bf16([seed, at], len(part))


class Encodings(Case):
    def test_pages_of_bf16_are_stored_smaller_and_come_back_exactly(self):
        for name, make in (("heads", mha_pool), ("latents", mla_pool)):
            with self.subTest(name):
                # A page of some KiB: of smaller ones the table of codes is a large part.
                pool = make(page_size=64, page_num=4, size=256)
                backend = self.open(pool, [self.file(**SPLIT)], params={"weights": name}, is_mla_model=make is mla_pool)
                fill_normal(pool, 0, 1)
                before = read(pool, 0, 64)
                self.assertEqual(backend.batch_set_v1(keys([1]), indices([0], 64)), [True])
                chunks, share = self.encoded(backend._core.tiers)
                self.assertEqual(chunks, 1)
                self.assertLess(share, 0.7)
                self.assertEqual(backend.batch_get_v1(keys([1]), indices([1], 64)), [True])
                self.assertEqual(read(pool, 1, 64), before)
                backend.close()

    def test_the_type_of_the_elements_changes_no_key(self):
        with mock.patch.object(_identity, "element_type", lambda name, pool: None):
            first = self.open()
            self.store(first, [0])
            first.close()
        second = self.open(tiers=[self.file(**SPLIT)])
        self.assertEqual(second.batch_exists(keys([0])), 1)
        self.assertEqual(self.load(second, [0]), ([True], [True]))

    def test_the_type_of_each_pool(self):
        uint8 = lambda make, **change: make(dtype=torch.uint8, **change)
        pools = [
            ("auto", "kv", mha_pool(), "bfloat16"),
            ("auto", "kv", mha_pool(dtype=torch.float16), "float16"),
            ("fp8_e4m3", "kv", uint8(mha_pool), "float8_e4m3fn"),
            ("fp8_e5m2", "kv", uint8(mha_pool), "float8_e5m2"),
            ("fp8_e4m3", "kv", uint8(mla_pool), "float8_e4m3fn"),
            # Latents of 8 bits with scales and parts of 16 bits between them.
            ("fp8_e4m3", "kv", uint8(mla_pool, kv_lora_rank=MLA_DIM), None),
            ("auto", "kv", uint8(mha_pool), None),
            ("nvfp4", "kv", uint8(mha_pool), None),
            ("mxfp8", "kv", uint8(mha_pool), None),
            # States have two types, and an indexer's keys have scales beside them.
            ("fp8_e4m3", "mamba", mamba_pool(), None),
            ("fp8_e4m3", "indexer", indexer_pool(), None),
            ("fp8_e4m3", "swa", window_pool(), None),
        ]
        for dtype, name, pool, expected in pools:
            with published(kv_cache_dtype=dtype, speculative_draft_kv_cache_dtype=None):
                self.assertEqual(_identity.element_type(name, pool), expected, (dtype, name))
        states = mamba_pool()
        states.temporal_buffer = torch.zeros((4, 2, 5, 8), dtype=states.conv_dtype)
        self.assertEqual(_identity.element_type("mamba", states), "bfloat16")

    def test_a_draft_model_has_a_type_of_its_own(self):
        pool = mha_pool(dtype=torch.uint8)
        for draft, expected in ((None, "float8_e4m3fn"), ("fp8_e5m2", "float8_e5m2"), ("auto", None)):
            with published(kv_cache_dtype="fp8_e4m3", speculative_draft_kv_cache_dtype=draft):
                self.assertEqual(_identity.element_type("draft", pool), expected)
                self.assertEqual(_identity.element_type("kv", pool), "float8_e4m3fn")
