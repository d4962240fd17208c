"""The storage plugin on a real GPU, with LMCache's own allocator. Skipped if torch finds none; `gds_device.py` runs over a stand-in."""

import unittest

import torch
from gds import CHUNK_BYTES, PLACE, Gds
from test_remote import CHUNK, of_tokens


@unittest.skipUnless(torch.cuda.is_available(), "torch finds no GPU here")
class OnAGpu(Gds):
    def whole_from_gpu(self, tokens):
        """Retrieves all tokens; every object is on the GPU and right."""
        kinds, to_gpu = set(), self.gpu.to_gpu
        self.gpu.to_gpu = lambda obj, *rest, **more: (kinds.add(obj.tensor.device.type), to_gpu(obj, *rest, **more))
        self.assertTrue(self.engine_now.retrieve(tokens).all())
        torch.cuda.synchronize()
        for (start, end), found in self.gpu.got.items():
            self.assertTrue(torch.equal(found.cpu(), of_tokens(start, end)), (start, end))
        self.assertEqual(max(end for _, end in self.gpu.got), len(tokens))
        self.assertEqual(kinds, {"cuda"})

    def test_loads_go_into_memory_of_the_gpu(self):
        self.engine_now = engine = self.engine(gds_buffer_size=8)
        tokens = list(range(5 * CHUNK))
        self.stored(engine, tokens, len(tokens))
        self.whole_from_gpu(tokens)
        self.assertEqual(self.counter(engine, "uploaded_bytes"), 5 * CHUNK_BYTES)

    def test_saves_take_memory_of_the_gpu(self):
        self.engine_now = engine = self.engine({f"{PLACE}.save_from": "gpu"}, gds_buffer_size=8)
        tokens = list(range(5 * CHUNK))
        self.stored(engine, tokens, len(tokens))
        self.assertEqual(self.counter(engine, "fetched_bytes"), 5 * CHUNK_BYTES)
        self.whole_from_gpu(tokens)
        self.stop()
        self.engine_now = self.engine(gds_buffer_size=8)
        self.whole_from_gpu(tokens)
