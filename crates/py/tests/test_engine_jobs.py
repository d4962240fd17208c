"""Jobs of the class that the adapters of inference engines use, without an engine."""

import hashlib
import mmap
import os
import tempfile
import time
import unittest

from kvtier import _native

ROW = 64 * 1024
ENGINE = {"engine": os.environ["KVTIER_ENGINE"]} if "KVTIER_ENGINE" in os.environ else {}
MISS, HIT = 0, 1
# The tokens of a chunk.
TOKENS = 64


def name(n):
    """A chunk's name as vLLM makes it: its hash, and its group."""
    return hashlib.sha256(b"%d" % n).digest() + (0).to_bytes(4, "big")


class Jobs(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(self.dir.cleanup)

    def open(self, timeout_seconds=30.0):
        spec = {"type": "file", "path": self.dir.name, "bytes": "64MiB", "free_min": 0, **ENGINE}
        self.tiers = _native.EngineTiers({"tiers": [spec], "config": None}, timeout_seconds=timeout_seconds)
        self.addCleanup(self.tiers.close)
        self.memory = mmap.mmap(-1, 16 * ROW)
        self.region = _native.Region(self.memory)
        self.tiers.register(self.region)
        self.tiers.identify(("org/model", 0, [(0, TOKENS)], ROW, "fields", None))
        self.request = self.tiers.request()

    def job(self, number, chunks, first_row=0, first_end=1):
        names = [name(n) for n in chunks]
        rows = range(first_row, first_row + len(names))
        ends = [(first_end + at) * TOKENS for at in range(len(names))]
        return (number, names, [row * ROW for row in rows], ends, ROW)

    def ends(self):
        self.assertTrue(self.tiers.drain(60))
        return {job: (done, error) for job, done, error, *_ in self.tiers.poll()}

    def lookup(self, chunks):
        return [self.tiers.lookup(name(n), self.request) for n in chunks]

    def test_a_load_that_ended_in_time_is_not_overdue_however_late_it_is_collected(self):
        timeout_s = 2.0
        self.open(timeout_s)
        self.tiers.save(self.job(1, range(4)), self.request)
        self.assertEqual(self.ends(), {1: (None, None)})
        self.tiers.load(self.job(2, range(4), 8), self.request)
        # The engine does not poll, as in a long step of its scheduler.
        time.sleep(timeout_s + 0.2)
        self.assertEqual(self.tiers.overdue_loads(), 0)
        self.assertEqual(self.lookup(range(5)), [HIT] * 4 + [MISS])
        self.tiers.load(self.job(3, range(4), 8), self.request)
        time.sleep(timeout_s + 0.2)
        # No other call has collected it before these lookups.
        self.assertEqual(self.lookup(range(5)), [HIT] * 4 + [MISS])
        self.assertEqual(self.ends(), {2: (None, None), 3: (None, None)})

    def test_a_chunk_at_the_last_position_of_a_chain_breaks_no_later_job(self):
        self.open()
        self.tiers.save(self.job(1, [0], first_end=2**32), self.request)
        self.tiers.save(self.job(2, range(1, 3), first_row=1, first_end=2), self.request)
        self.assertEqual(self.ends(), {1: (None, None), 2: (None, None)})
        self.tiers.load(self.job(3, range(3), first_row=8, first_end=2), self.request)
        self.assertEqual(self.ends(), {3: (None, None)})

    def test_a_lossy_encoding_is_refused(self):
        """Chunks of these engines have other layouts than CacheGen takes apart."""
        encode = [{"name": "cachegen", "layers": 2, "kv_width": 8}]
        spec = {"type": "file", "path": self.dir.name, "bytes": "64MiB", "free_min": 0, "encode": encode}
        with self.assertRaisesRegex(ValueError, "lossy.*other layouts"):
            _native.EngineTiers({"tiers": [spec], "config": None}, timeout_seconds=30.0)


if __name__ == "__main__":
    unittest.main()
