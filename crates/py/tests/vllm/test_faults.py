"""Faults under the tier: what is wrong is a miss, counted, and never a wrong byte."""

import os
import time
import unittest

import scene
from scene import HIT, MISS, Case, content, key, keys


class Files(Case):
    def counter(self, tier, name):
        return dict(tier._core.tiers.tier_status()[0]["counters"])[name]

    def test_one_flipped_bit_in_each_file_is_a_miss_and_counted(self):
        tier = self.open()
        self.store(tier, range(8))
        tier.shutdown()
        files = self.files()
        self.assertEqual(len(files), 8)
        for path in files:
            with open(path, "r+b") as file:
                file.seek(1000)
                byte = file.read(1)[0]
                file.seek(1000)
                file.write(bytes([byte ^ 4]))
        tier = self.open()
        self.assertEqual(self.lookup(tier, range(8)), [HIT] * 8)
        result, _ = self.load(tier, range(8))
        self.assertEqual((result.success, result.successful_keys), (False, None))
        self.assertEqual(self.counter(tier, "misses_corrupt"), 8)
        self.assertEqual(self.lookup(tier, range(8)), [MISS] * 8)
        # Stored again, they are back.
        self.store(tier, range(8))
        self.assertEqual(self.load(tier, range(8))[1], [True] * 8)

    def test_cut_files_are_misses(self):
        tier = self.open()
        self.store(tier, range(6))
        tier.shutdown()
        for length, path in zip((0, 1, 4096, scene.ROW - 1, scene.ROW, scene.ROW + 100), self.files()):
            os.truncate(path, length)
        tier = self.open()
        result, _ = self.load(tier, range(6))
        self.assertEqual((result.success, result.successful_keys), (False, None))
        self.assertEqual(self.lookup(tier, range(6)), [MISS] * 6)

    def sums(self, tier):
        """Chunks of loads, hits, and misses by reason."""
        values = self.values(tier)
        of = lambda name: values.get(f"vllm:kvtier_{name}", {})
        return of("load_chunks").get((), 0), of("load_hits").get((), 0), {reason: n for (reason,), n in of("load_misses").items()}

    def test_what_vllm_asked_for_is_hits_and_misses_by_reason(self):
        tier = self.open()
        self.store(tier, range(6))
        tier.shutdown()
        damaged, cut, gone, *_ = self.files()
        with open(damaged, "r+b") as file:
            file.write(b"!" * 100)
        os.truncate(cut, 5000)
        os.remove(gone)
        tier = self.open(spec=scene.config(ids=(0,)))
        self.load(tier, range(8))
        # A request that is refused, a key of no group, and one tier for both.
        refused = self.request(tier, {"kvtier": {"tenant": 7}})
        self.load(tier, range(2), request=refused)
        self.load(tier, range(3), group=9)
        chunks, hits, misses = self.sums(tier)
        self.assertEqual((chunks, hits), (13, 3))
        self.assertEqual(sum(misses.values()), chunks - hits)
        self.assertEqual({reason: n for reason, n in misses.items() if reason not in ("absent", "corrupt")}, {"refused": 2, "invalid": 3})
        # The two that are new, the one that was deleted; the damaged ones are corrupt or, once quarantined, absent.
        self.assertGreaterEqual(misses["absent"], 3)
        self.assertGreaterEqual(misses["corrupt"], 1)

    def test_deleted_files_are_misses(self):
        tier = self.open()
        self.store(tier, range(4))
        for path in self.files():
            os.remove(path)
        result, _ = self.load(tier, range(4))
        self.assertEqual((result.success, result.successful_keys), (False, None))
        self.assertEqual(self.lookup(tier, range(4)), [MISS] * 4)

    def test_rows_that_change_during_a_store_are_never_loaded_as_something_else(self):
        """vLLM does not write to rows in flight; a fault that does must not pass for a chunk."""
        tier = self.open()
        for n in range(8):
            tier.memory.array[n] = content(n)
        job = self.submit(tier, keys(range(8)), range(8), False)
        tier.memory.array[:8, ::512] = 1
        self.end(tier, job)
        result, right = self.load(tier, range(8), range(8, 16))
        loaded = [n for n in range(8) if result.success or key(n) in (result.successful_keys or ())]
        for n in loaded:
            row = tier.memory.array[8 + n]
            # The bytes before the change, or those after it, as they were summed.
            changed = content(n).copy()
            changed[::512] = 1
            self.assertTrue(right[n] or (row == changed).all(), n)

    def test_a_full_cap_is_kept_and_no_error(self):
        tier = self.open(tiers=[self.file(bytes=5 * (scene.ROW + 8192))])
        for n in range(24):
            self.assertTrue(self.store(tier, [n]).success)
        used, cap, chunks, _ = tier._core.tiers.usage()
        self.assertLessEqual(used, cap)
        found = self.lookup(tier, range(24))
        self.assertEqual(found.count(HIT), chunks)
        for n in range(24):
            if found[n] is HIT:
                self.assertEqual(self.load(tier, [n])[1], [True])

    def test_a_killed_engine_leaves_whole_chunks_only(self):
        stored = self.kill_while_it_stores(os.path.dirname(os.path.abspath(__file__)), 32)
        tier = self.open()
        found = self.lookup(tier, range(stored))
        self.assertGreaterEqual(found.count(HIT), stored - 8)
        for n in range(0, stored + 16, 8):
            result, right = self.load(tier, range(n, n + 8))
            kept = range(8) if result.success else [i for i in range(8) if key(n + i) in (result.successful_keys or ())]
            self.assertTrue(all(right[i] for i in kept))

    def test_two_engines_on_one_directory(self):
        first, second = self.open(), self.open()
        self.store(first, range(4))
        # At the latest when the change log is followed next.
        self.eventually(lambda: self.lookup(second, range(4)) == [HIT] * 4)
        self.assertEqual(self.load(second, range(4))[1], [True] * 4)
        self.store(second, range(4, 8))
        self.assertEqual(self.load(first, range(8))[1], [True] * 8)


class Late(Case):
    """Jobs whose deadline passes while a medium still uses their rows."""

    BIG = 16 << 20
    CHUNKS = 4

    def late(self):
        """A tier with large chunks whose jobs have no time, and whose rows are all its caller's."""
        spec = [self.file(bytes="1GiB")]
        tier = self.open(tiers=spec, memory=scene.Memory(rows=self.CHUNKS, row=self.BIG))
        for n in range(self.CHUNKS):
            tier.memory.array[n] = n
        self.assertTrue(self.end(tier, self.submit(tier, keys(range(self.CHUNKS)), range(self.CHUNKS), False)).success)
        tier.shutdown()
        return self.open(tiers=spec, memory=scene.Memory(rows=self.CHUNKS, row=self.BIG), timeout_seconds=0.002)

    def test_rows_of_a_late_load_are_not_written_after_its_end(self):
        tier, late, missed = self.late(), 0, 0
        for n in range(12):
            tier.memory.array[:] = 0
            began = time.monotonic()
            job = self.submit(tier, keys(range(self.CHUNKS)), range(self.CHUNKS), True)
            while not (ended := list(tier.get_finished_jobs())):
                if time.monotonic() - began > 0.01:
                    # No further request waits for a medium that does not answer.
                    missed += self.lookup(tier, [0]) == [MISS]
            self.assertEqual([one.job_id for one in ended], [job])
            late += not ended[0].success
            tier.memory.array[:] = 85
            time.sleep(0.01)
            self.assertTrue((tier.memory.array == 85).all(), "written to after the end of the job")
        self.assertGreater(late, 0, "no job was late")
        self.assertGreater(missed, 0, "no lookup came while a job was late")

    def test_what_came_late_is_a_miss_until_it_is_stored_again(self):
        tier = self.late()
        result = self.end(tier, self.submit(tier, keys(range(self.CHUNKS)), range(self.CHUNKS), True))
        kept = result.successful_keys or ()
        self.assertFalse(result.success)
        found = self.lookup(tier, range(self.CHUNKS))
        self.assertEqual(found, [HIT if key(n) in kept else MISS for n in range(self.CHUNKS)])
        self.assertIn(MISS, found)
        values = self.values(tier)
        hits = values.get("vllm:kvtier_load_hits", {}).get((), 0)
        self.assertEqual((hits, values["vllm:kvtier_load_chunks"]), (len(kept), {(): self.CHUNKS}))
        self.assertEqual(values["vllm:kvtier_load_misses"], {("late",): self.CHUNKS - len(kept)})

    def test_drain_waits_for_late_jobs_and_for_saves_that_ended(self):
        tier = self.late()
        for n in range(6):
            self.submit(tier, keys(range(self.CHUNKS)), range(self.CHUNKS), True)
            tier.drain_jobs()
            tier.memory.array[:] = 85
            time.sleep(0.01)
            self.assertTrue((tier.memory.array == 85).all(), "written to after the drain")
            self.assertEqual(len(list(tier.get_finished_jobs())), 1)
            self.submit(tier, keys(range(10 * n, 10 * n + self.CHUNKS)), range(self.CHUNKS), False)
            tier.drain_jobs()
            self.assertEqual(len(list(tier.get_finished_jobs())), 1)
        tier.shutdown()
        tier.memory.unmap()


if __name__ == "__main__":
    unittest.main()
