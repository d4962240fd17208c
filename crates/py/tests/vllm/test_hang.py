"""A device that hangs under the tier: nothing in the scheduler's thread waits for it, and it comes back."""

import os
import sys
import time
import unittest

from scene import HIT, MISS, RETRY, STEP_END, Case, config, content, key, keys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import hang  # noqa: E402

# The longest that one step of the scheduler may take: far above what one costs, far below a device that hangs.
STEP_MAX = 1.0
# How many steps may take longer, for a machine that does something else meanwhile. One that waited for the device would
# end with it, after the test.
LATE_STEPS_MAX = 3


class Hung(Case):
    def setUp(self):
        super().setUp()
        self.late_steps = 0
        self.device = hang.Device()
        # The tiers close before that.
        self.addCleanup(self.device.close)
        self.addCleanup(self.device.go_on)

    def step(self, tier, numbers, request):
        """One step of vLLM's scheduler: the answers, and the jobs that ended."""
        began = time.monotonic()
        found = self.lookup(tier, numbers, request)
        ended = list(tier.get_finished_jobs())
        list(tier.take_events())
        tier.get_stats()
        tier.on_schedule_end(STEP_END)
        self.late_steps += time.monotonic() - began > STEP_MAX
        self.assertLessEqual(self.late_steps, LATE_STEPS_MAX, "the scheduler waits for the device")
        return found, ended

    def test_the_scheduler_never_waits_and_the_tier_comes_back(self):
        tier = self.open(tiers=[self.file(path=self.device.path + "/kv")], spec=config(), timeout_seconds=2, enable_kv_events=True)
        self.store(tier, range(8))
        request = self.request(tier)
        self.device.hang()
        self.assertEqual(self.lookup(tier, range(4), request), [HIT] * 4)
        tier.memory.array[8:12] = 85
        load = self.submit(tier, keys(range(4)), range(8, 12), True, request)
        for row, n in enumerate(range(100, 104)):
            tier.memory.array[row] = content(n)
        store = self.submit(tier, keys(range(100, 104)), range(4), False)
        began, ended, late = time.monotonic(), {}, False
        while time.monotonic() - began < 6:
            # New requests, of chunks that are there and of others: they compute, at the latest from the load's deadline on.
            found, jobs = self.step(tier, [4, 5, 200, 201], self.request(tier))
            ended.update({job.job_id: job for job in jobs})
            if time.monotonic() - began > 3:
                late = True
                self.assertEqual(found, [MISS] * 4)
            tier.on_request_finished(request)
            time.sleep(0.05)
        self.assertTrue(late)
        # The store ended at its deadline. The kernel may still write to the rows of the load.
        self.assertEqual({job: result.success for job, result in ended.items()}, {store: False})
        self.assertEqual(self.values(tier)["vllm:kvtier_overdue_loads"], {(): 1})
        self.device.go_on()
        result = self.end(tier, load)
        self.assertEqual(self.values(tier)["vllm:kvtier_overdue_loads"], {(): 0})
        loaded = range(4) if result.success else [n for n in range(4) if key(n) in (result.successful_keys or ())]
        for n in loaded:
            self.assertTrue((tier.memory.array[8 + n] == content(n)).all())
        # Lookups are answered again, and what is stored now is found and right.
        self.eventually(lambda: self.step(tier, [4, 5, 300], self.request(tier))[0] == [HIT, HIT, MISS])
        self.eventually(lambda: self.store(tier, range(4)).success)
        self.assertEqual(self.load(tier, range(4))[1], [True] * 4)

    def test_keys_that_another_engine_may_have_stored_are_misses_and_not_asked_for_ever(self):
        tier = self.open(tiers=[self.file(path=self.device.path + "/kv")], timeout_seconds=2)
        self.store(tier, range(4))
        self.device.hang()
        began, retried = time.monotonic(), 0
        while time.monotonic() - began < 8:
            found, _ = self.step(tier, range(500, 520), self.request(tier))
            self.assertLessEqual(set(found), {MISS, RETRY})
            retried += RETRY in found
            time.sleep(0.05)
        self.device.go_on()
        self.eventually(lambda: self.step(tier, range(500, 520), self.request(tier))[0] == [MISS] * 20)


if __name__ == "__main__":
    unittest.main()
