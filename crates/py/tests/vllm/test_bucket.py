"""The tier over a bucket: lookups that never wait, and a store that is down, slow and back."""

import os
import sys
import time
import unittest

import scene
from scene import HIT, MISS, RETRY, STEP_END, Case, content, key, keys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import bucket  # noqa: E402


class Bucket(Case):
    def setUp(self):
        super().setUp()
        self.server = bucket.Server()
        self.addCleanup(self.server.stop)

    def s3(self, **more):
        return self.server.spec(**more)

    def test_what_this_node_stored_is_found_without_a_request(self):
        tier = self.open(tiers=[self.s3()])
        self.store(tier, range(8))
        self.assertEqual(self.server.requests()["PUT"], 8)
        self.assertEqual(self.lookup(tier, range(8)), [HIT] * 8)
        self.assertEqual(self.server.requests(), {})
        self.assertEqual(self.load(tier, range(8), range(8, 16))[1], [True] * 8)
        self.assertEqual(self.server.requests(), {"GET": 8})

    def test_unknown_keys_are_asked_for_once_in_one_batch_in_the_background(self):
        first = self.open(tiers=[self.s3()])
        self.store(first, range(4))
        first.shutdown()
        second = self.open(tiers=[self.s3()])
        self.server.requests()
        request = self.request(second)
        self.assertEqual(self.lookup(second, range(16), request), [RETRY] * 16)
        self.assertEqual(self.server.requests(), {}, "a lookup asks nothing by itself")
        self.assertTrue(second.has_pending_work())
        found, _ = self.settled(second, range(16), request)
        self.assertEqual(found, [HIT] * 4 + [MISS] * 12)
        self.assertEqual(self.server.requests(), {"HEAD": 16})
        # Within the time for which an answer counts nothing is asked again.
        self.assertEqual(self.lookup(second, range(16)), [HIT] * 4 + [MISS] * 12)
        second.on_schedule_end(STEP_END)
        self.assertEqual(self.server.requests(), {})
        self.assertEqual(self.load(second, range(4))[1], [True] * 4)

    def test_an_absent_key_is_asked_for_again_after_its_time(self):
        first, second = self.open(tiers=[self.s3()]), self.open(tiers=[self.s3()])
        self.assertEqual(self.settled(second, [0])[0], [MISS])
        self.store(first, [0])
        deadline = time.monotonic() + 300
        while self.settled(second, [0])[0] != [HIT]:
            self.assertLess(time.monotonic(), deadline, "it is never found")
            time.sleep(0.05)

    def test_many_keys_wait_for_a_bounded_number_of_requests(self):
        tier = self.open(tiers=[self.s3()])
        request = self.request(tier)
        self.assertEqual(set(self.lookup(tier, range(3000), request)), {RETRY})
        found, _ = self.settled(tier, range(3000), request)
        self.assertNotIn(RETRY, found)

    def test_the_head_of_a_long_prefix_is_answered_first(self):
        tier = self.open(tiers=[self.s3()])
        request = self.request(tier)
        self.lookup(tier, range(3000), request)
        # One batch, and the keys that came first in it.
        while RETRY in (found := self.lookup(tier, range(3000), request))[:1024]:
            tier.on_schedule_end(STEP_END)
            time.sleep(0.001)
        self.assertEqual(found[:1024], [MISS] * 1024)
        self.assertIn(RETRY, found[2048:])

    def test_a_slow_answer_keeps_no_other_key_waiting(self):
        first = self.open(tiers=[self.s3()])
        self.store(first, range(4))
        first.shutdown()
        tier = self.open(tiers=[self.s3()])
        request = self.request(tier)
        # One HEAD of the batch takes longer than the batch may.
        self.server.ask("stall-heads 10000 1")
        began = time.monotonic()

        def answered(numbers):
            found = self.lookup(tier, numbers, request)
            tier.on_schedule_end(STEP_END)
            return found.count(RETRY) <= 1 and found

        found = self.eventually(lambda: answered(range(200)))
        took = time.monotonic() - began
        self.assertLess(took, 8, "all waited for one")
        self.assertGreaterEqual(found.count(HIT), 3)
        self.assertEqual(found.count(HIT) + found.count(MISS) + found.count(RETRY), 200)
        # Nor do keys that come later.
        self.eventually(lambda: RETRY not in (answered(range(300, 400)) or [RETRY]))
        self.assertLess(time.monotonic() - began, 9.5, "the next batch waited for it")
        self.eventually(lambda: RETRY not in (answered(range(200)) or [RETRY]))

    def test_a_key_is_not_retried_for_ever(self):
        tier = self.open(tiers=[self.s3()])
        request = self.request(tier)
        self.assertEqual(set(self.lookup(tier, range(3000), request)), {RETRY})
        # No step for longer than a key may wait.
        time.sleep(2.2)
        tier.on_schedule_end(STEP_END)
        self.assertEqual(set(self.lookup(tier, range(3000), request)), {MISS})

    def test_a_bucket_that_is_down_costs_misses_and_it_comes_back(self):
        tier = self.open(tiers=[self.s3()], timeout_seconds=1)
        self.store(tier, range(4))
        port = self.server.port
        self.server.stop()
        began = time.monotonic()
        found, _ = self.settled(tier, range(100, 110))
        self.assertEqual(found, [MISS] * 10)
        result = self.end(tier, self.submit(tier, keys(range(4)), range(8, 12), True))
        self.assertEqual((result.success, result.successful_keys), (False, None))
        self.assertEqual(self.lookup(tier, range(4)), [MISS] * 4, "until they are stored again")
        stored = self.end(tier, self.submit(tier, keys([50]), [0], False))
        self.assertFalse(stored.success)
        self.assertLess(time.monotonic() - began, 120)
        self.server = bucket.Server(port=port)
        self.addCleanup(self.server.stop)
        # It lost everything; what the tier takes for present is stored again after a load that missed.
        deadline = time.monotonic() + 60
        while not (self.store(tier, range(4)).success and self.load(tier, range(4))[1] == [True] * 4):
            self.assertLess(time.monotonic(), deadline, "it does not come back")

    def test_files_over_a_bucket(self):
        tier = self.open(tiers=[self.file(), self.s3()])
        self.store(tier, range(8))
        self.assertEqual(self.lookup(tier, range(8)), [HIT] * 8)
        tier.shutdown()
        for path in self.files():
            os.remove(path)
        tier = self.open(tiers=[self.file(), self.s3()])
        self.assertEqual(self.settled(tier, range(10))[0], [HIT] * 8 + [MISS] * 2)
        self.assertEqual(self.load(tier, range(8))[1], [True] * 8)
        # The bucket had what the files lacked.
        values = self.values(tier)
        self.assertEqual((values["vllm:kvtier_load_chunks"], values["vllm:kvtier_load_hits"]), ({(): 8}, {(): 8}))
        self.assertNotIn("vllm:kvtier_load_misses", values)
        self.assertEqual(values["vllm:kvtier_tier_misses"], {("file", "absent"): 8})
        # Promoted to files: found in the same step.
        self.assertEqual(self.lookup(tier, range(8)), [HIT] * 8)

    def test_damaged_objects_are_misses(self):
        tier = self.open(tiers=[self.s3()])
        self.store(tier, range(2))
        for name in self.server.keys():
            self.server.put(name, bytes(scene.ROW))
        result, _ = self.load(tier, range(2))
        self.assertEqual((result.success, result.successful_keys), (False, None))
        self.assertEqual(self.settled(tier, range(2))[0], [MISS] * 2)
        self.store(tier, range(2))
        self.assertEqual(self.load(tier, range(2))[1], [True] * 2)


if __name__ == "__main__":
    unittest.main()
