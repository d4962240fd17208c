"""The backend over a bucket: requests, a bucket that is down, and damaged objects."""

import os
import sys
import time

from scene import Case, keys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import bucket  # noqa: E402


class Bucket(Case):
    def setUp(self):
        super().setUp()
        self.server = bucket.Server()
        self.addCleanup(self.server.stop)

    def test_what_this_node_stored_is_found_without_a_request(self):
        backend = self.open(tiers=[self.server.spec()])
        self.store(backend, range(8))
        self.server.requests()
        self.assertEqual(backend.batch_exists(keys(range(8))), 8)
        self.assertEqual(self.server.requests(), {})
        self.assertEqual(self.load(backend, range(8), range(8, 16)), ([True] * 8, [True] * 8))

    def test_pages_of_another_node_are_asked_for_once_within_the_call(self):
        first = self.open(tiers=[self.server.spec()])
        self.store(first, range(4))
        first.close()
        second = self.open(tiers=[self.server.spec()])
        self.server.requests()
        self.assertEqual(second.batch_exists(keys(range(16))), 4)
        asked = self.server.requests()
        self.assertLessEqual(sum(asked.values()), 16)
        # What was asked for behind the end of the prefix ends too.
        time.sleep(0.2)
        self.server.requests()
        self.assertEqual(second.batch_exists(keys(range(4))), 4)
        self.assertEqual(self.server.requests(), {})
        self.assertEqual(self.load(second, range(4)), ([True] * 4, [True] * 4))

    def test_a_bucket_that_is_down_costs_misses_and_it_comes_back(self):
        backend = self.open(tiers=[self.server.spec()], params={"timeout_seconds": 2})
        self.store(backend, range(4))
        port = self.server.port
        self.server.stop()
        began = time.monotonic()
        self.assertEqual(backend.batch_exists(keys(range(100, 104))), 0)
        self.assertEqual(self.load(backend, range(4))[0], [False] * 4)
        self.assertEqual(self.store(backend, range(50, 52)), [False] * 2)
        self.assertLess(time.monotonic() - began, 120)
        # Further lookups do not wait for it.
        began = time.monotonic()
        self.assertEqual(backend.batch_exists(keys(range(200, 204))), 0)
        self.assertLess(time.monotonic() - began, 60)
        self.server = bucket.Server(port=port)
        self.eventually(lambda: self.store(backend, range(60, 62)) == [True] * 2)
        # Reads come back by themselves, a moment later than writes.
        self.eventually(lambda: self.load(backend, range(60, 62)) == ([True] * 2, [True] * 2))

    def test_files_over_a_bucket(self):
        spec = [self.file(), self.server.spec()]
        backend = self.open(tiers=spec)
        self.store(backend, range(6))
        self.eventually(lambda: len(self.server.keys()) == 6)
        backend.close()
        for path in self.files():
            os.remove(path)
        again = self.open(tiers=spec)
        self.assertEqual(again.batch_exists(keys(range(8))), 6)
        self.assertEqual(self.load(again, range(6), range(8, 14)), ([True] * 6, [True] * 6))

    def test_a_bucket_without_names_is_not_cleared_and_the_answer_says_so(self):
        backend = self.open(tiers=[self.server.spec()])
        self.store(backend, range(3))
        with self.assertLogs("kvtier", "WARNING") as logged:
            self.assertFalse(backend.clear())
        self.assertIn('restart SGLang with another "weights"', logged.output[0])
        self.assertEqual(backend.batch_exists(keys(range(3))), 3)
        named = self.open(tiers=[self.server.spec(layout="lmcache-mp")])
        self.store(named, range(3))
        self.assertTrue(named.clear())
        self.assertEqual(named.batch_exists(keys(range(3))), 0)
