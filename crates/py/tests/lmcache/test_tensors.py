"""`kvtier.Store` with torch, which is there where LMCache is."""

import mmap
import unittest

import torch
from kvtier import Key, Store, errors
from scene import MIB, Case


class Tensors(Case):
    def test_tensors_of_any_type_go_in_and_out_without_a_copy(self):
        store = Store(tiers=[{"type": "file", "path": self.dir, "bytes": 64 * MIB, "free_min": 0}])
        self.addCleanup(store.close)
        for n, dtype in enumerate((torch.bfloat16, torch.float8_e4m3fn, torch.int64)):
            data = torch.arange(4096).to(dtype).reshape(64, 64)
            into = torch.zeros_like(data)
            key = Key("model", bytes([n] * 32), group=n)
            store.save([key], [data])
            self.assertEqual(store.load([key], [into]), [data.nbytes])
            self.assertTrue(torch.equal(data.view(torch.uint8), into.view(torch.uint8)))
        # In pages of their own, as LMCache's are, not even the tier copies them.
        before = store.status().counters["copied_bounce_bytes"]
        data, into = (torch.frombuffer(mmap.mmap(-1, MIB), dtype=torch.uint8) for _ in range(2))
        data.copy_(torch.arange(MIB) % 251)
        store.save([Key("model", b"pages")], [data])
        self.assertEqual(store.load([Key("model", b"pages")], [into]), [MIB])
        self.assertTrue(torch.equal(data, into))
        self.assertEqual(store.status().counters["copied_bounce_bytes"], before)
        with self.assertRaisesRegex(errors.Invalid, "contiguous"):
            store.save([Key("model", b"x")], [torch.zeros(8, 8).t()])
        with self.assertRaisesRegex(errors.Invalid, "meta"):
            store.save([Key("model", b"x")], [torch.zeros(8, device="meta")])


if __name__ == "__main__":
    unittest.main()
