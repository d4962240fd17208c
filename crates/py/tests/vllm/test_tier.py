"""Every method of vLLM's interface for tiers, over files."""

import os
import threading
import unittest

import scene
from scene import HIT, MISS, CHUNK_TOKENS, Case, Memory, config, content, key, keys
from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope
from vllm.v1.kv_offload.base import Locality, Medium, OffloadPolicy, TierFilter, TierMatcher
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvtier.vllm import KvtierTier


class Methods(Case):
    def test_stored_chunks_are_found_at_once_and_loaded(self):
        tier = self.open()
        self.assertEqual(self.lookup(tier, range(8)), [MISS] * 8)
        stored = self.store(tier, range(8))
        self.assertTrue(stored.success)
        self.assertEqual((stored.transfer_bytes, stored.successful_keys), (8 * scene.ROW, None))
        self.assertGreater(stored.transfer_time, 0)
        # In the same step, without a retry.
        self.assertEqual(self.lookup(tier, range(10)), [HIT] * 8 + [MISS] * 2)
        loaded, right = self.load(tier, range(8), range(8, 16))
        self.assertTrue(loaded.success)
        self.assertEqual((loaded.transfer_bytes, right), (8 * scene.ROW, [True] * 8))
        self.assertFalse(tier.has_pending_work())

    def test_every_method_of_the_interface_is_ours_or_needs_nothing(self):
        inherited = {
            name
            for name, value in vars(SecondaryTierManager).items()
            if callable(value) and not name.startswith("_") and name not in vars(KvtierTier)
        }
        self.assertEqual(inherited, {"serve_external_requests"})
        self.assertEqual((KvtierTier.medium, KvtierTier.cache_hit_source), (Medium.STORAGE, CacheHitSource.DISK))
        self.assertFalse(KvtierTier.__abstractmethods__)

    def test_after_a_restart_the_chunks_are_there(self):
        first = self.open()
        self.store(first, range(4))
        first.shutdown()
        second = self.open()
        self.assertEqual(self.lookup(second, range(5)), [HIT] * 4 + [MISS])
        self.assertEqual(self.load(second, range(4))[1], [True] * 4)

    def test_a_partly_failed_load_names_what_came_and_the_rest_is_a_miss(self):
        tier = self.open()
        self.store(tier, [0, 2])
        result, right = self.load(tier, [0, 1, 2, 3])
        self.assertFalse(result.success)
        self.assertEqual(set(result.successful_keys), {key(0), key(2)})
        self.assertEqual(right, [True, False, True, False])
        self.assertEqual(self.lookup(tier, range(4)), [HIT, MISS, HIT, MISS])

    def test_a_load_of_nothing_that_is_there_has_no_successful_keys(self):
        tier = self.open()
        result, _ = self.load(tier, [7, 8])
        self.assertEqual((result.success, result.successful_keys), (False, None))

    def test_groups_are_apart(self):
        tier = self.open(spec=config(groups=2))
        self.store(tier, range(3), group=0)
        self.store(tier, [1], group=1)
        self.assertEqual(self.lookup(tier, range(3), group=0), [HIT] * 3)
        # What another group needs of the same tokens is not there: no hit where vLLM needs it.
        self.assertEqual(self.lookup(tier, range(3), group=1), [MISS, HIT, MISS])
        self.assertEqual(self.load(tier, [1], group=1)[1], [True])
        self.assertEqual(self.load(tier, [1], group=0)[1], [True])

    def test_a_job_over_several_groups_and_any_order_of_keys(self):
        tier = self.open(spec=config(groups=2))
        request = self.request(tier)
        wanted = [key(2, 1), key(0, 0), key(1, 0), key(0, 1), key(2, 0)]
        for group in (0, 1):
            for n in range(3):
                request.set_offload_key_position(key(n, group), (n + 1) * CHUNK_TOKENS)
        for row, (n, group) in enumerate([(2, 1), (0, 0), (1, 0), (0, 1), (2, 0)]):
            tier.memory.array[row] = content(n, group)
        self.assertTrue(self.end(tier, self.submit(tier, wanted, range(5), False, request)).success)
        tier.memory.array[10:15] = 0
        self.assertTrue(self.end(tier, self.submit(tier, wanted, range(10, 15), True, request)).success)
        for row, (n, group) in enumerate([(2, 1), (0, 0), (1, 0), (0, 1), (2, 0)]):
            self.assertTrue((tier.memory.array[10 + row] == content(n, group)).all())

    def test_jobs_of_two_threads_one_at_a_time(self):
        tier, lock, wrong = self.open(), threading.Lock(), []

        def work(first):
            for round in range(5):
                numbers = [first + 4 * round + n for n in range(4)]
                rows = range(first % 8, first % 8 + 4)
                with lock:
                    if not self.store(tier, numbers, rows).success:
                        wrong.append(numbers)
                with lock:
                    if self.load(tier, numbers, rows)[1] != [True] * 4:
                        wrong.append(numbers)

        threads = [threading.Thread(target=work, args=(first,)) for first in (100, 204)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(wrong, [])

    def test_drain_during_transfers_leaves_no_io_and_all_results(self):
        tier = self.open()
        for n in range(8):
            tier.memory.array[n] = content(n)
        jobs = [self.submit(tier, keys([n]), [n], False) for n in range(8)]
        tier.drain_jobs()
        # The rows may be reused now: what was stored stays right.
        tier.memory.array[:] = 0
        self.assertEqual({(one.job_id, one.success) for one in tier.get_finished_jobs()}, {(job, True) for job in jobs})
        self.assertEqual(self.load(tier, range(8))[1], [True] * 8)
        jobs = [self.submit(tier, keys([n]), [16 + n], True) for n in range(8)]
        tier.drain_jobs()
        self.assertEqual({one.job_id for one in tier.get_finished_jobs()}, set(jobs))
        for n in range(8):
            self.assertTrue((tier.memory.array[16 + n] == content(n)).all())
        tier.drain_jobs()

    def test_shutdown_releases_every_view_of_the_memory(self):
        tier = self.open()
        self.store(tier, range(4))
        self.submit(tier, keys(range(4)), range(8, 12), True)
        self.submit(tier, keys(range(20, 24)), range(12, 16), False)
        tier.shutdown()
        tier.shutdown()
        tier.memory.unmap()
        self.assertTrue(tier.memory.map.closed)

    def test_touched_chunks_stay(self):
        # Space for about 8 chunks. The first is used over and over, and by its request's chain is no chunk's parent.
        tier = self.open(tiers=[self.file(bytes=9 * (scene.ROW + 8192), policy="lru")])
        self.store(tier, [0])
        for n in range(1, 30):
            tier.touch([key(0)], self.request(tier))
            self.store(tier, [n])
        self.assertEqual(self.lookup(tier, [0]), [HIT])
        self.assertIn(MISS, self.lookup(tier, range(1, 29)))

    def test_events_in_order_with_medium_and_locality(self):
        tier = self.open(tiers=[self.file(bytes=9 * (scene.ROW + 8192))], enable_kv_events=True, locality="LOCAL")
        self.store(tier, range(4))
        events = self.eventually(lambda: list(tier.take_events()))
        self.assertEqual([one.removed for one in events], [False] * len(events))
        self.assertEqual({each for one in events for each in one.keys}, set(keys(range(4))))
        self.assertTrue(all((one.medium, one.locality) == (Medium.STORAGE, Locality.LOCAL) for one in events))
        for n in range(4, 40):
            self.store(tier, [n])
        present, seen = set(keys(range(4))), []

        def agree():
            for one in tier.take_events():
                seen.append(one.removed)
                (present.difference_update if one.removed else present.update)(one.keys)
            found = {key(n) for n in range(40) if self.lookup(tier, [n]) == [HIT]}
            return present == found and True in seen

        self.eventually(agree)

    def test_no_events_where_they_are_disabled(self):
        for tier in (self.open(), self.open(spec=config(events=False), enable_kv_events=True)):
            self.store(tier, range(2))
            self.assertEqual(list(tier.take_events()), [])

    def test_a_chunk_that_is_stored_again_is_an_event_again(self):
        tier = self.open(enable_kv_events=True)
        for _ in range(2):
            # The second time vLLM's CPU tier had evicted them; a consumer of events may have come meanwhile.
            self.assertTrue(self.store(tier, range(4)).success)
            seen = []
            self.eventually(lambda: seen.extend(tier.take_events()) or len(seen) and {each for one in seen for each in one.keys} == set(keys(range(4))))
            self.assertEqual({one.removed for one in seen}, {False})

    def test_many_events_are_taken_in_parts(self):
        row, count = 4096, 2500
        tier = self.open(spec=config(worker_kv_bytes_per_block=row // 4), memory=Memory(rows=count, row=row), enable_kv_events=True)
        self.assertTrue(self.end(tier, self.submit(tier, keys(range(count)), range(count), False)).success)
        taken = []
        self.eventually(lambda: taken.append(sum(len(one.keys) for one in tier.take_events())) or sum(taken) == count)
        self.assertLessEqual(max(taken), 2048, "an object of each event is made in the scheduler's thread")


class Recency(Case):
    """vLLM calls no `touch`: a request that ends says which chunks it used."""

    def finish(self, tier, request, numbers):
        for at, n in enumerate(numbers):
            request.set_offload_key_position(key(n), (at + 1) * CHUNK_TOKENS)
        tier.on_request_finished(request)

    def test_chunks_that_vllm_has_itself_stay(self):
        # Space for about 8 chunks. The first is always found on the GPU, and so no request asks for it here.
        tier = self.open(tiers=[self.file(bytes=9 * (scene.ROW + 8192), policy="lru")])
        self.store(tier, [0])
        for n in range(1, 30):
            self.finish(tier, self.request(tier), [0])
            self.store(tier, [n])
        self.assertEqual(self.lookup(tier, [0]), [HIT])
        self.assertIn(MISS, self.lookup(tier, range(1, 29)))

    def touched(self, tier):
        calls = []

        class Spy:
            def __getattr__(self, name):
                return getattr(native, name)

            def touch(self, names, ends, request):
                calls.append((names, ends))

        native, tier._native = tier._native, Spy()
        return calls

    def test_a_use_counts_once(self):
        tier = self.open()
        request = self.request(tier)
        calls = self.touched(tier)
        self.store(tier, [2], request=request)
        self.finish(tier, request, range(4))
        # The store of the third was a use.
        self.assertEqual(calls, [(keys([0, 1, 3]), [CHUNK_TOKENS, 2 * CHUNK_TOKENS, 4 * CHUNK_TOKENS])])
        refused = self.request(tier, {"kvtier": {"tenant": 7}})
        self.finish(tier, refused, range(4))
        self.assertEqual(len(calls), 1)

    def test_a_long_request_is_bounded(self):
        from kvtier.vllm import tier as module

        tier = self.open()
        calls = self.touched(tier)
        self.finish(tier, self.request(tier), range(module.TOUCHED_MAX + 10))
        self.assertEqual([len(names) for names, _ in calls], [module.TOUCHED_MAX])


class Groups(Case):
    IDS = (2, 5)

    def test_groups_have_the_ids_that_vllm_gives_them(self):
        tier = self.open(spec=config(ids=self.IDS))
        for group in self.IDS:
            request = self.request(tier)
            for n in range(3):
                request.set_offload_key_position(key(n, group), (n + 1) * CHUNK_TOKENS)
            self.store(tier, range(3), group=group, request=request)
        for group in self.IDS:
            self.assertEqual(self.lookup(tier, range(4), group=group), [HIT] * 3 + [MISS])
            self.assertEqual(self.load(tier, range(3), group=group)[1], [True] * 3)

    def test_what_the_engine_did_not_name_is_neither_stored_nor_found(self):
        tier = self.open(spec=config(ids=self.IDS))
        # Its layers are not in the namespace: another engine's group of this id may have others.
        self.assertFalse(self.store(tier, [0], group=0).success)
        self.assertEqual(self.lookup(tier, [0], group=0), [MISS])
        self.assertFalse(self.load(tier, [0], group=0)[0].success)

    def test_the_head_of_a_prefix_stays_longer_in_a_group_of_any_id(self):
        tier = self.open(spec=config(ids=(3,)), tiers=[self.file(bytes=9 * (scene.ROW + 8192))])
        request = self.request(tier)
        for n in range(8):
            request.set_offload_key_position(key(n, 3), (n + 1) * CHUNK_TOKENS)
        # The tail was stored last.
        self.store(tier, range(8), group=3, request=request)
        for n in range(100, 104):
            self.store(tier, [n], group=3)
        found = self.lookup(tier, range(8), group=3)
        self.assertEqual(found, sorted(found, key=lambda one: one is MISS), "a chunk left before one that needs it")
        self.assertIn(MISS, found)

    def test_ids_are_apart(self):
        with self.assertRaisesRegex(ValueError, "2 KV cache groups have 1 ids"):
            self.open(spec=config(ids=(4, 4)))


class Closed(Case):
    def left(self):
        rings = [fd for fd in os.listdir("/proc/self/fd") if "io_uring" in self.link(fd)]
        return len(os.listdir("/proc/self/task")), len(rings)

    def link(self, fd):
        try:
            return os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return ""

    def test_after_shutdown_no_thread_and_no_ring_is_left(self):
        before = self.left()
        tier = self.open()
        self.store(tier, range(4))
        self.load(tier, range(4))
        self.assertGreater(self.left()[0], before[0])
        tier.get_stats()
        tier.shutdown()
        # vLLM still has the object, and may ask it for its numbers.
        # A thread that has been joined is listed for a moment more.
        self.eventually(lambda: all(now <= then for now, then in zip(self.left(), before)))
        self.assertIsNone(tier.get_stats())
        self.assertEqual(list(tier.get_finished_jobs()), [])
        self.assertEqual(tier.config_info()["kvtier_tiers"], "file")
        self.assertEqual(self.lookup(tier, [0]), [MISS])
        self.assertFalse(tier.has_pending_work())
        tier.on_request_finished(self.request())
        tier.on_schedule_end(scene.STEP_END)


class Requests(Case):
    def test_a_tenant_sees_only_its_own(self):
        tier = self.open()
        alice, bob, shared = ({"kvtier": {"tenant": "alice"}}, {"kvtier": {"tenant": "bob"}}, None)
        self.store(tier, range(2), request=self.request(tier, alice))
        for params, expected in [(alice, HIT), (bob, MISS), (shared, MISS)]:
            self.assertEqual(self.lookup(tier, range(2), self.request(tier, params)), [expected] * 2)
        self.assertEqual(tier._core.tiers.usage()[3], [("alice", tier._core.tiers.usage()[0], 2)])

    def test_the_policy_is_to_offload_chunks_as_they_come(self):
        self.assertEqual(self.open().on_new_request(self.request()).policy, OffloadPolicy.CHUNK_LEVEL)

    def test_a_request_with_an_invalid_tenant_neither_loads_nor_stores(self):
        tier = self.open()
        self.store(tier, [0])
        for tenant in (7, "a@b", "x" * 5000):
            request = self.request(tier, {"kvtier": {"tenant": tenant}})
            self.assertEqual(self.lookup(tier, [0], request), [MISS])
            self.assertTrue(self.end(tier, self.submit(tier, [key(1)], [1], False, request)).success)
            self.assertFalse(self.end(tier, self.submit(tier, [key(0)], [1], True, request)).success)
        self.assertEqual(self.lookup(tier, [0, 1]), [HIT, MISS])
        self.assertEqual(self.counted(tier, "vllm:kvtier_refused_requests"), 3)

    def test_a_refusal_is_logged_once_for_each_cause(self):
        from unittest import mock

        from kvtier.vllm import _identity

        tier = self.open()
        self.store(tier, [0])
        with self.assertLogs("kvtier", "WARNING") as logs:
            for tenant in (7, "a@b", "secret" * 50):
                self.request(tier, {"kvtier": {"tenant": tenant}})
        self.assertEqual(len(logs.output), 1)
        self.assertIn("invalid tenant", logs.output[0])
        self.assertNotIn("secret", logs.output[0])
        # vLLM makes the root of its hashes after its tiers. Without it no request may be served, nor may one end the engine.
        tier = self.open()
        with mock.patch.object(_identity, "hash_root", side_effect=RuntimeError("no hashes")), self.assertLogs("kvtier", "WARNING") as logs:
            for _ in range(3):
                self.assertEqual(self.lookup(tier, [0], self.request(tier)), [MISS])
        self.assertEqual(len(logs.output), 1)
        self.assertIn("no hashes", logs.output[0])
        self.assertEqual(self.values(tier)["vllm:kvtier_refused_requests"], {("identity",): 3})
        self.assertEqual(self.lookup(tier, [0]), [HIT], "it is tried again")

    def test_unknown_parameters_and_hints_are_ignored_and_counted(self):
        tier = self.open()
        action = KvHintAction("1", "kvtier", "1", {"priority": 3, "tenant": "mallory"})
        other = KvHintAction("2", "prefetch", "1", {})
        hints = KvHintsEnvelope("1", "m", [action, other])
        params = {"kvtier": {"colour": "red", "priority": "high", "ttl_seconds": -1}, "other": 1}
        request = self.request(tier, params, hints)
        self.store(tier, [0], request=request)
        self.assertEqual(self.lookup(tier, [0]), [HIT])
        # The colour, the priority, the time, the tenant in a hint, and the other action.
        self.assertEqual(self.counted(tier, "vllm:kvtier_ignored_params"), 5)

    def test_priority_and_time_are_read(self):
        from kvtier.vllm._request_params import Wishes, wishes

        params = {"kvtier": {"tenant": "t", "priority": 5, "ttl_seconds": 60}}
        self.assertEqual(wishes(self.request(params=params)), Wishes("t", 5, 60.0))
        hints = KvHintsEnvelope("1", "m", [KvHintAction("1", "kvtier", "1", {"priority": 3, "ttl_seconds": 1.5})])
        self.assertEqual(wishes(self.request(hints=hints)), Wishes("", 3, 1.5))
        self.assertEqual(wishes(self.request(params=params, hints=hints)).priority, 5)
        for bad in (True, 1.5, 1000, None):
            self.assertEqual(wishes(self.request(params={"kvtier": {"priority": bad}})).priority, 0)

    def test_retained_chunks_stay(self):
        tier = self.open(tiers=[self.file(bytes=9 * (scene.ROW + 8192))])
        for n in range(4):
            self.store(tier, [n], request=self.request(tier, {"kvtier": {"ttl_seconds": 600}}))
        for n in range(10, 40):
            self.store(tier, [n])
        self.assertEqual(self.lookup(tier, range(4)), [HIT] * 4)

    def test_the_filter_of_a_request_is_obeyed(self):
        tier = self.open(locality="REMOTE")
        self.store(tier, [0])
        local = TierFilter((TierMatcher(Medium.STORAGE, Locality.LOCAL),))
        remote = TierFilter((TierMatcher(Medium.STORAGE, Locality.REMOTE),))
        none = TierFilter(())
        for allowed, expected in [(local, MISS), (remote, HIT), (none, MISS), (TierFilter.ALL, HIT)]:
            request = self.request(tier, load_tier_filter=allowed)
            self.assertEqual(self.lookup(tier, [0], request), [expected], allowed)

    def test_two_tiers_in_one_engine_do_not_share_a_requests_state(self):
        other = self.dir + "/other"
        first = self.open(tiers=[self.file(path=self.dir + "/first")])
        second = self.open(tiers=[self.file(path=other)])
        request = self.request(first)
        second.on_new_request(request)
        self.store(first, [0], request=request)
        self.assertEqual(self.lookup(first, [0], request), [HIT])
        self.assertEqual(self.lookup(second, [0], request), [MISS])
        first.on_request_finished(request)
        self.assertEqual(self.lookup(second, [0], request), [MISS])

    def test_a_request_that_was_not_announced_is_served(self):
        tier = self.open()
        self.store(tier, [0], request=self.request())
        self.assertEqual(tier.lookup(key(0), self.request()), HIT)

    def counted(self, tier, name):
        stats = tier.get_stats()
        self.assertIsNotNone(stats)
        return sum(stats.data["data"].get(name, {}).values())


class Reports(Case):
    def test_stats_are_the_metrics_that_were_declared(self):
        tier = self.open()
        declared = KvtierTier.build_metric_definitions({})
        self.store(tier, range(4))
        self.load(tier, [0, 1, 9])
        self.lookup(tier, range(5))
        stats = tier.get_stats()
        values, types = stats.data["data"], stats.data["types"]
        for name, by_label in values.items():
            kind = type(declared[name]).__name__.removeprefix("Offloading").removesuffix("Metadata").lower()
            self.assertEqual(types[name], kind, name)
            for labels in by_label:
                self.assertEqual(len(labels), len(declared[name].labelnames), name)
        self.assertEqual(values["vllm:kvtier_load_chunks"], {(): 3})
        self.assertEqual(values["vllm:kvtier_load_hits"], {(): 2})
        self.assertEqual(values["vllm:kvtier_load_misses"], {("absent",): 1})
        self.assertEqual(values["vllm:kvtier_tier_hits"], {("file",): 2})
        self.assertEqual(values["vllm:kvtier_tier_misses"], {("file", "absent"): 1})
        self.assertEqual(values["vllm:kvtier_overdue_loads"], {(): 0})
        self.assertEqual(values["vllm:kvtier_stored_chunks"], {("file",): 4})
        self.assertEqual(values["vllm:kvtier_stored_bytes"], {("file",): 4 * scene.ROW})
        self.assertEqual(values["vllm:kvtier_loaded_bytes"], {("file",): 2 * scene.ROW})
        self.assertEqual(values["vllm:kvtier_lookups"], {("hit",): 4, ("miss",): 1})
        self.assertEqual(values["vllm:kvtier_failed_jobs"], {("load",): 1})
        self.assertEqual(values["vllm:kvtier_healthy"], {("file",): 1})
        self.assertEqual({labels: len(seconds) for labels, seconds in values["vllm:kvtier_job_seconds"].items()}, {("load",): 1, ("store",): 1})
        # Another reading at once costs nothing; later ones have only what changed.
        tier._stats._next_read = float("inf")
        self.assertIsNone(tier.get_stats())
        tier._stats._next_read = 0
        self.assertNotIn("vllm:kvtier_load_hits", tier.get_stats().data["data"])

    def test_the_page_of_metrics_lists_them(self):
        import os

        page = os.path.join(os.path.dirname(__file__), "../../../../docs/METRICS.md")
        with open(page) as file:
            text = file.read()
        for name, metric in KvtierTier.build_metric_definitions({}).items():
            self.assertTrue(f"`{name}`" in text, f"docs/METRICS.md lacks {name}")
            for label in metric.labelnames:
                self.assertTrue(f"`{label}`" in text, f"docs/METRICS.md lacks the label {label}")

    def test_labels_of_the_configuration(self):
        tier = self.open(timeout_seconds=7)
        info = tier.config_info()
        self.assertEqual(tuple(info), KvtierTier.config_info_keys({}))
        self.assertEqual(info["kvtier_timeout_seconds"], 7)


class Parameters(Case):
    def refused(self, **params):
        with self.assertRaises(ValueError) as raised:
            self.open(**params)
        return str(raised.exception)

    def test_wrong_parameters_name_the_key_and_the_remedy(self):
        self.assertIn("unknown parameter 'timeout_second': write 'timeout_seconds'", self.refused(timeout_second=3))
        self.assertIn("leave it out", self.refused(zebra=3))
        for wrong in (0, -1, "30", True, float("inf")):
            self.assertIn("timeout_seconds", self.refused(timeout_seconds=wrong))
        self.assertIn("enable_kv_events", self.refused(enable_kv_events="yes"))
        self.assertIn("write LOCAL or REMOTE", self.refused(locality="nearby"))
        self.assertIn("byte", self.refused(tiers=[{"type": "file", "path": self.dir, "byte": "1GiB"}]))
        self.assertIn("zip", self.refused(tiers=[{"type": "zip"}]))

    def test_a_configuration_of_vllm_that_no_key_can_name_is_refused_at_once(self):
        refused = self.refused(spec=config(name="m" * 600))
        self.assertIn("vLLM's configuration cannot be named in keys: the model", refused)
        self.assertIn("KV cache groups", self.refused(spec=config(groups=0)))

    def test_tiers_and_a_configuration_file_exclude_each_other(self):
        memory = Memory()
        with self.assertRaises(ValueError) as raised:
            KvtierTier(scene.Spec(config()), memory.view, "t", tiers=[self.file()], config="/kv.yaml")
        with self.assertRaises(ValueError):
            KvtierTier(scene.Spec(config()), memory.view, "t")
        self.assertIn("either tiers", str(raised.exception))

    def test_a_configuration_file(self):
        path = f"{self.dir}/kv.yaml"
        with open(path, "w") as file:
            file.write(f"tiers:\n- {{type: file, path: {self.dir}/kv, bytes: 64MiB, free_min: 0}}\n")
        tier = self.open(config=path)
        self.store(tier, range(2))
        self.assertEqual(self.load(tier, range(2))[1], [True] * 2)
        with self.assertRaises(OSError):
            self.open(config=f"{self.dir}/none.yaml")

    def test_other_versions_of_vllm_are_refused_with_a_remedy(self):
        from unittest import mock

        from kvtier.vllm import _versions

        _versions.check()
        for version in ("0.31.4", "0.34.0", "1.0", "dev"):
            with mock.patch.object(_versions, "vllm_version", lambda version=version: version):
                with self.assertRaises(ImportError) as raised:
                    _versions.check()
                self.assertIn(f"this is vLLM {version}", str(raised.exception))
                self.assertIn("install one of these", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
