"""Two configurations of vLLM that differ in anything that decides what bytes mean never see each other's chunks."""

import os
import unittest
from unittest import mock

import real_vllm
import scene
from scene import HIT, MISS, Case, Memory, config

from kvtier.vllm import _identity, _versions

# One change of every field.
CHANGES = {
    "model": {"name": "org/other"},
    "dtype": {"dtype": "fp8_e4m3"},
    "KV layout": {"kv_cache_layout": "HND"},
    "canonical layout": {"canonical_layout": True},
    "tokens per hash": {"tokens_per_hash": 32},
    "tokens per block": {"tokens_per_block": 32},
    "blocks per chunk": {"blocks_per_chunk": 8},
    "layers": {"layer_names": ("layer.0", "layer.2")},
    "groups": {"groups": 2},
    "tensor parallel": {"tp_size": 2},
    "pipeline parallel": {"pp_size": 2},
    "prefill context parallel": {"pcp_size": 2},
    "decode context parallel": {"dcp_size": 2},
    "world": {"world_size": 2},
    "rank": {"rank": 1},
    "bytes per block": {"worker_kv_bytes_per_block": scene.ROW // 2},
    "parallel-agnostic": {"is_parallelism_agnostic": True},
    "replicated": {"replicated_layout": True},
}
# Fields that do not decide what the bytes mean: replicas share their chunks.
SHARED = {
    "engine": {"engine_id": "another"},
    "replica": {"data_parallel_index": 1},
    "replicas": {"data_parallel_size": 4},
    "rank of the replica": {"data_parallel_rank_local": 1},
    "events": {"events": False},
    "other settings": {"extra_config": {"cpu_bytes_to_use": 1}},
}


class Fields(Case):
    def seen_by(self, spec, memory=None):
        """What an engine of this configuration finds of chunk 0, which an engine of the default one stored."""
        tier = self.open(spec=spec, memory=memory)
        found = self.lookup(tier, [0])
        tier.shutdown()
        return found[0]

    def setUp(self):
        super().setUp()
        tier = self.open()
        self.store(tier, [0])
        tier.shutdown()
        self.assertIs(self.seen_by(config()), HIT)

    def test_each_field_in_turn(self):
        for what, change in CHANGES.items():
            with self.subTest(what):
                self.assertIs(self.seen_by(config(**change)), MISS)

    def test_the_length_of_a_chunk(self):
        self.assertIs(self.seen_by(config(), Memory(row=scene.ROW // 2)), MISS)

    def test_the_version_of_vllm_counts_without_its_patch(self):
        this = _versions.minor(real_vllm.VERSION)
        (other,) = set(_versions.SUPPORTED) - {this}
        for minor, expected in [(this, HIT), (other, MISS)]:
            version = ".".join(map(str, (*minor, 7)))
            with mock.patch.object(_versions, "vllm_version", lambda version=version: version):
                self.assertIs(self.seen_by(config()), expected)

    def test_the_algorithm_and_the_seed_of_hashes(self):
        self.addCleanup(real_vllm.hashes.init_none_hash, lambda seed: b"root of " + seed.encode())
        real_vllm.hashes.init_none_hash(lambda seed: b"another algorithm " + seed.encode())
        self.assertIs(self.seen_by(config()), MISS)
        with mock.patch.dict(os.environ, PYTHONHASHSEED="7"):
            real_vllm.hashes.init_none_hash(lambda seed: b"root of " + seed.encode())
            self.assertIs(self.seen_by(config()), MISS)

    def test_what_replicas_may_differ_in(self):
        for what, change in SHARED.items():
            with self.subTest(what):
                self.assertIs(self.seen_by(config(**change)), HIT)

    def test_chunks_that_do_not_depend_on_parallel_sizes_are_shared_between_them(self):
        agnostic = {"is_parallelism_agnostic": True}
        tier = self.open(spec=config(**agnostic))
        self.store(tier, [1])
        tier.shutdown()
        for change in ({"tp_size": 2, "world_size": 2, "worker_kv_bytes_per_block": scene.ROW // 8}, {"pp_size": 2}, {"rank": 1}):
            tier = self.open(spec=config(**agnostic, **change))
            self.assertEqual(self.lookup(tier, [1]), [HIT], change)
            tier.shutdown()

    def test_engines_with_other_weights_share_nothing(self):
        tier = self.open(weights="revision 1")
        self.store(tier, [1])
        tier.shutdown()
        for weights, found in (("revision 2", MISS), (None, MISS), ("revision 1", HIT)):
            tier = self.open(weights=weights)
            self.assertEqual(self.lookup(tier, [1]), [found], weights)
            tier.shutdown()
        with self.assertRaisesRegex(ValueError, "weights = 3"):
            self.open(weights=3)

    def test_every_field_of_the_identity_was_changed(self):
        def paths(value, at=""):
            if isinstance(value, dict):
                return {path for name, inner in value.items() for path in paths(inner, f"{at}.{name}")}
            return {at}

        def flat(change):
            spec = scene.Spec(config(**change))
            return _identity.of_engine(spec, scene.ROW).fields

        base, changed = flat({}), set()
        for change in CHANGES.values():
            fields = flat(change)
            changed |= {name for name in base if fields[name] != base[name]}
        # The others have tests of their own above; the format and the engine's name are constants.
        self.assertEqual(set(base) - changed, {"format", "engine", "engine_version", "chunk_bytes", "hash", "weights"})
        sizes = set(base["parallel"])
        moved = {name for change in CHANGES.values() if isinstance(flat(change)["parallel"], dict) for name in sizes if flat(change)["parallel"][name] != base["parallel"][name]}
        self.assertEqual(moved, sizes)

    def test_a_random_seed_is_reported(self):
        random = lambda seed: b"fast " + seed.encode()
        self.addCleanup(real_vllm.hashes.init_none_hash, lambda seed: b"root of " + seed.encode())
        with mock.patch.object(real_vllm.hashes, "_NON_CRYPTO_HASH_FUNCTIONS", {random}):
            random.__name__ = "xxhash"
            real_vllm.hashes.init_none_hash(random)
            self.assertTrue(_identity.has_random_hashes())
            tier = self.open()
            with self.assertLogs("kvtier", "WARNING") as logs:
                self.lookup(tier, [0])
            self.assertIn("PYTHONHASHSEED", logs.output[0])
        real_vllm.hashes.init_none_hash(lambda seed: b"root of " + seed.encode())
        self.assertFalse(_identity.has_random_hashes())


if __name__ == "__main__":
    unittest.main()
