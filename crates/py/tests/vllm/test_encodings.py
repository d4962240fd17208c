"""Tiers that encode: the type of the elements comes from vLLM."""

import unittest
from unittest import mock

import numpy as np
import scene
from adapter_case import normal_bf16
from scene import HIT, Case, config

from kvtier import _element_types
from kvtier.vllm import _identity

SPLIT = {"encode": ["bf16-split"]}
# vLLM's dtypes of KV caches, and the element types of their chunks.
TYPES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_inc": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    # Scales and elements of several types, or no floats.
    "fp8_ds_mla": None,
    "fp8_per_token_head": None,
    "int8_per_token_head": None,
    "nvfp4": None,
    "turboquant_k8v4": None,
}


class Encodings(Case):
    def store_normal(self, tier, numbers):
        for n in numbers:
            tier.memory.array[n] = normal_bf16(n, scene.ROW).view(np.int8)
        self.assertTrue(self.end(tier, self.submit(tier, scene.keys(numbers), numbers, False)).success)

    def assert_loads_normal(self, tier, numbers):
        rows = [n + len(numbers) for n in numbers]
        tier.memory.array[rows] = 85
        self.assertTrue(self.end(tier, self.submit(tier, scene.keys(numbers), rows, True)).success)
        for n, row in zip(numbers, rows):
            self.assertTrue((tier.memory.array[row] == normal_bf16(n, scene.ROW).view(np.int8)).all())

    def test_chunks_of_bf16_are_stored_smaller_and_come_back_exactly(self):
        for first, kind in ((0, "file"), (4, "gds")):
            numbers = list(range(first, first + 4))
            tier = self.open([self.file(**{**SPLIT, "type": kind})])
            self.store_normal(tier, numbers)
            chunks, share = self.encoded(tier._core.tiers)
            self.assertEqual(chunks, 4, kind)
            self.assertLess(share, 0.7)
            self.assert_loads_normal(tier, numbers)
            # Another process reads them too, whatever it encodes itself.
            tier.shutdown()
            tier = self.open()
            self.assert_loads_normal(tier, numbers)
            tier.shutdown()

    def test_chunks_of_mixed_types_are_stored_as_they_are(self):
        tier = self.open([self.file(**SPLIT)], spec=config(dtype="nvfp4"))
        self.store_normal(tier, [0])
        self.assertEqual(self.encoded(tier._core.tiers), (0, None))
        self.assert_loads_normal(tier, [0])

    def test_the_type_of_the_elements_changes_no_key(self):
        with mock.patch.object(_element_types, "of_kv_cache", lambda name: None):
            tier = self.open()
            self.store_normal(tier, [0])
            tier.shutdown()
        tier = self.open([self.file(**SPLIT)])
        self.assertEqual(self.lookup(tier, [0]), [HIT])
        self.assert_loads_normal(tier, [0])

    def test_every_dtype_of_vllm(self):
        for name, expected in TYPES.items():
            identity = _identity.of_engine(scene.Spec(config(dtype=name)), scene.ROW)
            self.assertEqual(identity.dtype, expected, name)

    def test_a_type_of_no_name_is_refused(self):
        with mock.patch.object(_element_types, "of_kv_cache", lambda name: "bf17"):
            with self.assertRaisesRegex(ValueError, "bf17.*PyTorch's name"):
                self.open()


if __name__ == "__main__":
    unittest.main()
