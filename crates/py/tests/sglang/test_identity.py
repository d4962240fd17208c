"""Engines whose pages differ in anything never see each other's: each field is changed in turn."""

import contextlib
from unittest import mock

from host_pools import TOKENS, indexer_pool, mamba_pool, mha_pool, mla_pool, window_pool
from real_sglang import torch
from scene import Case, config, keys

from kvtier.sglang import _host_memory, _identity
from kvtier.sglang import _versions as versions

UNNAMED = _identity.Names(None, False)


def texts(pool=None, names=UNNAMED, name="kv", **change):
    """The fields of the shards of a pool."""
    storage_config = config(**change)
    is_replicated = storage_config.is_mla_model
    pages = _host_memory.PageMap(mha_pool() if pool is None else pool, 1 if is_replicated else _identity.split_factor(storage_config))
    shards = _identity.shards(storage_config, is_replicated)
    return [_identity.text(_identity.fields(storage_config, names, name, pages, shard, is_replicated)) for shard in shards]


@contextlib.contextmanager
def published(**change):
    """What SGLang has published of its configuration."""
    model = type("Model", (), {"kv_cache_dtype": "auto", "dtype": "bfloat16", "quantization": None, "revision": None, **change})
    with mock.patch("sglang.srt.runtime_context.get_model", lambda: model), mock.patch("sglang.srt.runtime_context.get_spec", lambda: model):
        yield


class Fields(Case):
    def test_each_field_of_the_configuration_changes_the_namespace(self):
        base = texts(tp_size=2, pp_size=2, attn_cp_size=2)
        changes = dict(
            tp_rank=1, tp_size=4, pp_rank=1, pp_size=4, attn_cp_rank=1, attn_cp_size=4, dp_rank=1, model_name="org/other", is_mla_model=True
        )
        for name, value in changes.items():
            fields = dict(tp_size=2, pp_size=2, attn_cp_size=2)
            fields[name] = value
            self.assertNotEqual(texts(**fields), base, name)

    def test_each_field_of_a_pool_with_heads_changes_the_namespace(self):
        pools = {
            "": mha_pool(),
            "layout": mha_pool("page_first_direct"),
            "dtype": mha_pool(dtype=torch.float16),
            "page": mha_pool(page_size=8, page_num=16),
            "layers": mha_pool(layer_num=2),
            "stage": mha_pool(start_layer=3, end_layer=6),
            "heads": mha_pool(heads=2),
            "tag": mha_pool(storage_format_tag="fp4"),
        }
        found = {name: texts(pool)[0] for name, pool in pools.items()}
        self.assertEqual(len(set(found.values())), len(pools), found)
        self.assertNotEqual(texts(name="draft"), texts())

    def test_each_field_of_a_pool_of_latents_changes_the_namespace(self):
        mla = lambda pool=None, **change: texts(pool or mla_pool(), is_mla_model=True, **change)
        base = mla()
        shards = dict(tp_size=2, dcp_size=2, logical_page_size=2 * TOKENS)
        others = [
            mla(mla_pool("layer_first")),
            mla(mla_pool(dtype=torch.float16)),
            mla(mla_pool(layer_num=2)),
            mla(pp_size=2),
            mla(pp_size=2, pp_rank=1),
            mla(attn_cp_size=2),
            mla(attn_cp_size=2, attn_cp_rank=1),
            mla(dp_rank=1),
            mla(mla_pool(dcp_size=2), **shards),
            mla(mla_pool(dcp_size=2, dcp_rank=1), tp_rank=1, dcp_rank=1, **shards),
            mla(mla_pool(dcp_size=2), **{**shards, "tp_size": 4}),
            mla(mla_pool(dcp_size=2), **{**shards, "logical_page_size": 4 * TOKENS}),
        ]
        self.assertEqual(len({text for texts_of in [base, *others] for text in texts_of}), 1 + len(others))
        # The bytes of latents are the same on all ranks, and for all numbers of them.
        self.assertEqual(mla(tp_rank=1, tp_size=2), base)
        self.assertEqual(mla(tp_rank=3, tp_size=8), base)

    def test_side_pools_are_apart_and_differ_by_rank_where_their_bytes_do(self):
        pools = {"mamba": mamba_pool(), "indexer": indexer_pool(), "swa": window_pool()}
        found = [texts(pool, name=name)[0] for name, pool in pools.items()]
        self.assertEqual(len(set(found)), 3)
        smaller = mamba_pool()
        smaller.num_mamba_layers = 1
        self.assertNotEqual(texts(smaller, name="mamba"), texts(mamba_pool(), name="mamba"))
        backends = [
            self.open(
                mla_pool(),
                pools={"mamba": mamba_pool(), "indexer": indexer_pool(), "draft": mha_pool()},
                is_mla_model=True,
                tp_rank=rank,
                tp_size=2,
            )
            for rank in range(2)
        ]
        digests = [{name: pool.shards[0].digest for name, pool in one._pools.items()} for one in backends]
        same = {name for name in digests[0] if digests[0][name] == digests[1][name]}
        self.assertEqual(same, {"kv", "indexer"})
        self.assertEqual({name for name, pool in backends[1]._pools.items() if pool.is_writer}, {"mamba", "draft"})

    def test_shards_of_heads_are_named_by_what_they_hold(self):
        split = dict(tp_lcm_size=4, should_split_heads=True)
        whole = texts(mha_pool("page_head"), **split)
        halves = [texts(mha_pool("page_head", 2), tp_size=2, tp_rank=rank, **split) for rank in range(2)]
        quarters = [texts(mha_pool("page_head", 1), tp_size=4, tp_rank=rank, tp_lcm_size=4) for rank in range(4)]
        self.assertEqual(len(set(whole)), 4)
        self.assertEqual(whole, [text for texts_of in halves for text in texts_of])
        self.assertEqual(whole, [text for texts_of in quarters for text in texts_of])
        self.assertNotIn(texts(mha_pool("page_head"))[0], whole)

    def test_what_the_operator_and_the_engine_say_changes_the_namespace(self):
        base = texts()
        self.assertNotEqual(texts(names=_identity.Names("revision 2", False)), base)
        with published():
            base = texts()
            draft = texts(name="draft")
        for name in _identity.MODEL_SETTINGS:
            with published(**{name: "other"}):
                self.assertNotEqual(texts(), base, name)
        with published(load_format="dummy"):
            self.assertNotEqual(texts(), base)
        with published(load_format="safetensors"):
            self.assertEqual(texts(), base)
        for name in _identity.DRAFT_SETTINGS:
            with published(**{name: "other"}):
                self.assertEqual(texts(), base)
                self.assertNotEqual(texts(name="draft"), draft, name)

    def test_a_served_name_does_not_stand_for_the_weights_behind_it(self):
        named = _identity.Names("revision 2", False)
        with published(model_path="/models/v1"):
            base, base_named = texts(), texts(names=named)
        with published(model_path="/models/v2"):
            self.assertNotEqual(texts(), base)
            # Hosts with the same weights at other paths share what the operator names.
            self.assertEqual(texts(names=named), base_named)

    def test_layers_of_a_draft_model_in_the_same_pages_are_named(self):
        packed = mha_pool()
        packed.target_layer_num = packed.layer_num - 1
        with published():
            base = texts(packed)
        with published(speculative_draft_model_path="other"):
            self.assertNotEqual(texts(packed), base)

    def test_another_release_of_sglang_has_another_namespace(self):
        base = texts()
        with mock.patch.object(versions, "release", lambda: "0.5.24"):
            self.assertNotEqual(texts(), base)

    def test_data_parallel_ranks_share_unless_the_operator_says_no(self):
        share = _identity.Names(None, True)
        self.assertEqual(texts(names=share, dp_rank=1), texts(names=share))
        self.assertNotEqual(texts(names=share), texts())
        for params, found in (({}, 1), ({"share_data_parallel": False}, 0)):
            first, second = (self.open(params={"weights": str(found), **params}, dp_rank=rank) for rank in (0, 1))
            self.store(first, [5])
            self.eventually(lambda: second.batch_exists(keys([5])) == found)
            self.assertEqual(second.batch_exists(keys([5])), found)

    def test_the_number_of_pages_and_their_addresses_change_nothing(self):
        self.assertEqual(texts(mha_pool()), texts(mha_pool(page_num=16, size=64)))


class Versions(Case):
    def test_another_version_is_refused_with_a_remedy(self):
        with mock.patch.object(versions, "sglang_version", lambda: "0.6.0"):
            with self.assertRaisesRegex(ImportError, r"supports SGLang 0\.5\.23, and this is SGLang 0\.6\.0.*docs/sglang\.md"):
                versions.check()
        for same in ("0.5.23", "0.5.23.post1"):
            with mock.patch.object(versions, "sglang_version", lambda: same):
                versions.check()
