"""`kvtier.lmcache.KvtierL2Adapter` under LMCache's own `plugin`: its factory, its controllers' calls."""

import logging
import os
import socket
import time
import unittest
import urllib.request

from lmcache.v1.distributed.internal_api import L2AdapterListener
from scene import MIB, MODEL, Case, adapter, content, key


class RecordingListener(L2AdapterListener):
    def __init__(self):
        self.stored, self.accessed, self.deleted = [], [], []

    def on_l2_keys_stored(self, keys, sizes):
        self.stored += zip(keys, sizes)

    def on_l2_keys_accessed(self, keys):
        self.accessed += keys

    def on_l2_keys_deleted(self, keys):
        self.deleted += keys


class Plugin(Case):
    def opened(self, params=None, arena=True, **more):
        params = params or {"tiers": [{"type": "file", "path": self.dir, "bytes": 48 * MIB, "free_min": 0}]}
        spec = {"type": "plugin", "module_path": "kvtier.lmcache", "class_name": "KvtierL2Adapter"}
        a = adapter({**spec, "adapter_params": params, **more}, self.arena if arena else None)
        self.addCleanup(a.close)
        return a

    def test_there_are_three_descriptors(self):
        a = self.opened()
        fds = {a.get_store_event_fd(), a.get_lookup_and_lock_event_fd(), a.get_load_event_fd()}
        self.assertEqual(len(fds), 3)

    def test_stored_chunks_are_found_loaded_and_deleted_and_listeners_notified(self):
        a, listener = self.opened(), RecordingListener()
        a.register_listener(listener)
        keys = [key(n) for n in range(4)]
        stored = self.store(a, keys, [self.arena.obj(MIB, n) for n in range(4)])
        self.assertEqual((stored.is_successful(), stored.bytes_transferred()), (True, 4 * MIB))
        again = self.store(a, keys[:1], [self.arena.obj(MIB, 0)])
        self.assertEqual((again.is_successful(), again.bytes_transferred()), (True, 0))
        self.assertEqual(listener.stored, [(k, MIB) for k in keys] + [(keys[0], 0)])
        self.assertEqual(self.lookup(a, [*keys, key(99)]), [True] * 4 + [False])
        into = [self.arena.obj(MIB, 200) for _ in keys]
        self.assertEqual(self.load(a, keys, into), [True] * 4)
        self.assertEqual(listener.accessed, keys)
        for n, obj in enumerate(into):
            self.assertEqual(bytes(obj.byte_array), content(n, MIB))
        a.submit_unlock(keys)
        a.delete([*keys, key(99)])
        self.assertEqual(listener.deleted, keys)
        self.assertEqual(self.lookup(a, keys), [False] * 4)

    def test_a_listener_or_log_handler_that_raises_costs_no_result(self):
        class Broken(RecordingListener):
            def on_l2_keys_stored(self, keys, sizes):
                raise RuntimeError("on purpose")

            on_l2_keys_accessed = on_l2_keys_deleted = lambda self, *_: self.on_l2_keys_stored(None, None)

        a = self.opened()
        a.register_listener(Broken())
        with self.assertLogs("kvtier") as log:
            self.assertTrue(self.store(a, [key(1)], [self.arena.obj(MIB, 1)]).is_successful())
            self.assertEqual(self.load(a, [key(1)], [self.arena.obj(MIB)]), [True])
            a.delete([key(1)])
        self.assertEqual([record.getMessage() for record in log.records], ["a listener failed"] * 3)

        def broken(record):
            raise RuntimeError("on purpose")

        logger = logging.getLogger("kvtier")
        logger.addFilter(broken)
        self.addCleanup(logger.removeFilter, broken)
        a.close()
        self.assertFalse(self.store(a, [key(1)], [self.arena.obj(MIB, 1)]).is_successful())
        self.assertEqual(self.lookup(a, [key(1)]), [False])
        self.assertEqual(self.load(a, [key(1)], [self.arena.obj(MIB)]), [False])

    def test_an_answer_is_given_once(self):
        a = self.opened()
        self.store(a, [key(1)], [self.arena.obj(MIB, 1)])
        task = a.submit_lookup_and_lock_task([key(1)], {})
        self.end(a.get_lookup_and_lock_event_fd(), lambda: a.query_lookup_and_lock_result(task))
        self.assertIsNone(a.query_lookup_and_lock_result(task))

    def test_locked_chunks_are_not_deleted_until_every_lock_is_released(self):
        a = self.opened()
        self.store(a, [key(1), key(2)], [self.arena.obj(MIB, 1), self.arena.obj(MIB, 2)])
        self.lookup(a, [key(1)])
        self.lookup(a, [key(1), key(2)])
        self.load(a, [key(1)], [self.arena.obj(MIB)])
        for locks, there in [(2, [True, True]), (1, [True, False]), (0, [False, False])]:
            a.delete([key(1), key(2)])
            self.assertEqual(self.there(a, [key(1), key(2)]), there, f"{locks} locks on the first")
            a.submit_unlock([key(1), key(2)][: locks or 1] if locks else [key(99)])

    def test_a_lookup_locks_key_by_key(self):
        a = self.opened()
        self.store(a, [key(0), key(1)], [self.arena.obj(MIB, 0), self.arena.obj(MIB, 1)])
        self.assertEqual(self.lookup(a, [key(0), key(1)]), [True, True])
        a.submit_unlock([key(0)])
        a.delete([key(0), key(1)])
        self.assertEqual(self.there(a, [key(0), key(1)]), [False, True])
        a.submit_unlock([key(1)])
        a.delete([key(1)])
        self.assertEqual(self.there(a, [key(1)]), [False])

    def there(self, a, keys):
        found = self.lookup(a, keys)
        a.submit_unlock([k for k, is_there in zip(keys, found) if is_there])
        return found

    def test_a_chunk_of_another_length_is_a_miss(self):
        a = self.opened()
        self.store(a, [key(1)], [self.arena.obj(MIB, 1)])
        for size in (MIB - 4096, MIB + 4096):
            with self.assertLogs("kvtier") as log:
                self.assertEqual(self.load(a, [key(1)], [self.arena.obj(size)]), [False])
            self.assertIn(f"{MIB} bytes", log.output[0])
            self.assertIn(str(size), log.output[0])

    def test_usage_by_salt_exists_and_is_correct_after_a_restart(self):
        a = self.opened()
        self.store(a, [key(1, "alice")], [self.arena.obj(MIB, 1)])
        self.store(a, [key(2, "bob"), key(3, "bob")], [self.arena.obj(MIB, 2), self.arena.obj(MIB, 3)])
        before = a.get_usage()
        self.assertEqual(before.total_capacity_bytes, 48 * MIB)
        self.assertGreaterEqual(before.total_bytes_used, 3 * MIB)
        self.assertEqual({s: b // MIB for s, b in before.bytes_by_cache_salt.items()}, {"alice": 1, "bob": 2})
        self.assertFalse(a.supports_global_eviction, "kvtier enforces the cap")
        a.close()
        after = self.opened().get_usage()
        self.assertEqual(after.total_bytes_used, before.total_bytes_used)
        self.assertEqual(after.total_capacity_bytes, before.total_capacity_bytes)

    def test_keys_of_all_processes_are_listed_page_by_page(self):
        a = self.opened()
        keys = [key(n) for n in range(7)]
        self.store(a, keys, [self.arena.obj(MIB, n) for n in range(7)])
        a.close()
        a = self.opened()
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor:
            page = a.list_l2_keys(page_size=3, cursor=cursor)
            found, cursor, pages = found + list(page.entries), page.next_page_token, pages + 1
        self.assertEqual({entry.key.to_object_key() for entry in found}, set(keys))
        self.assertEqual({entry.size_bytes for entry in found}, {MIB})
        self.assertEqual(len(a.list_l2_keys(model_name=MODEL).entries), 7)
        self.assertEqual(a.list_l2_keys(model_name="other").entries, ())
        for wrong in ({"page_size": 0}, {"cursor": "kvtier-77"}):
            with self.assertRaises(ValueError):
                a.list_l2_keys(**wrong)

    def test_the_object_of_the_former_adapter_works_unchanged(self):
        """`fs` writes, we read what it wrote and write beside it, `fs` reads that."""
        old = {"type": "fs", "base_path": self.dir}
        theirs = adapter(old)
        self.assertTrue(self.store(theirs, [key(1)], [self.arena.obj(MIB, 1)]).is_successful())
        theirs.close()
        ours = self.opened(old)
        into = self.arena.obj(MIB)
        self.assertEqual(self.lookup(ours, [key(1)]), [True])
        self.assertEqual(self.load(ours, [key(1)], [into]), [True])
        self.assertEqual(bytes(into.byte_array), content(1, MIB))
        self.assertTrue(self.store(ours, [key(2)], [self.arena.obj(MIB, 2)]).is_successful())
        self.assertEqual({e.key.to_object_key() for e in ours.list_l2_keys().entries}, {key(1), key(2)})
        ours.close()
        theirs = adapter(old)
        self.addCleanup(theirs.close)
        self.assertEqual(self.load(theirs, [key(2)], [into]), [True])
        self.assertEqual(bytes(into.byte_array), content(2, MIB))

    def test_salts_share_a_directory_and_are_counted_correctly_after_a_restart(self):
        old = {"type": "fs", "base_path": self.dir, "max_capacity_gb": 1}
        theirs = adapter(old)
        self.store(theirs, [key(1, "alice"), key(2, "bob")], [self.arena.obj(MIB, 1), self.arena.obj(MIB, 2)])
        theirs.close()
        a = self.opened(old)
        self.assertTrue(self.store(a, [key(3, "alice")], [self.arena.obj(MIB, 3)]).is_successful())
        self.assertTrue(self.store(a, [key(4)], [self.arena.obj(MIB, 4)]).is_successful())
        a.close()
        a = self.opened(old)
        expected, limit = {"": MIB, "alice": 2 * MIB, "bob": MIB}, time.monotonic() + 60
        # Sizes of files that others may have written are looked at in the background.
        while dict(a.get_usage().bytes_by_cache_salt) != expected and time.monotonic() < limit:
            time.sleep(0.05)
        self.assertEqual(dict(a.get_usage().bytes_by_cache_salt), expected, "before any key was asked for")
        into = self.arena.obj(MIB)
        self.assertEqual(self.load(a, [key(2, "bob")], [into]), [True])
        self.assertEqual(bytes(into.byte_array), content(2, MIB))
        self.assertEqual(self.lookup(a, [key(1), key(1, "alice"), key(1, "bob")]), [False, True, False])

    def moved(self, a):
        """Requests with registered memory, requests with other memory, and registered bytes."""
        counters = a.report_status()["counters"]
        return [counters[name] for name in ("fixed_requests", "unfixed_requests", "registered_bytes")]

    def test_memory_of_the_first_level_is_registered_once_and_used(self):
        a = self.opened()
        self.assertTrue(a.report_status()["is_healthy"])
        [said] = a.report_status()["registered_memory"]
        self.assertIn(f"{self.arena.size} bytes registered", said, a.report_status()["reasons"])
        self.assertEqual(self.moved(a), [0, 0, self.arena.size])
        keys = [key(n) for n in range(8)]
        for n, k in enumerate(keys):
            self.assertTrue(self.store(a, [k], [self.arena.obj(MIB, n)]).is_successful())
        stored = self.moved(a)
        self.assertGreaterEqual(stored[0], 8, "each chunk's bytes")
        self.assertLessEqual(stored[1], 8, "the footers, which are no bytes of the caller's")
        into = [self.arena.obj(MIB, 200) for _ in keys]
        self.assertEqual(self.load(a, keys, into), [True] * 8)
        loaded = self.moved(a)
        self.assertGreaterEqual(loaded[0] - stored[0], 8)
        self.assertLessEqual(loaded[1] - stored[1], 8)
        self.assertEqual(loaded[2], self.arena.size, "once, whatever is moved")
        for n, obj in enumerate(into):
            self.assertEqual(bytes(obj.byte_array), content(n, MIB))

    def test_without_memory_to_register_transfers_are_unregistered(self):
        a = self.opened(arena=False)
        self.assertIn("no host memory", a.report_status()["registered_memory"][0])
        self.assertTrue(self.store(a, [key(1)], [self.arena.obj(MIB, 1)]).is_successful())
        fixed, unfixed, registered = self.moved(a)
        self.assertEqual((fixed, registered), (0, 0))
        self.assertGreater(unfixed, 0)

    def test_a_used_metrics_port_disables_metrics_and_not_the_tiers(self):
        with socket.create_server(("127.0.0.1", 0)) as taken, self.assertLogs("kvtier", "ERROR") as log:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            a = self.opened({"tiers": [{"type": "host", "bytes": 16 * MIB}], "metrics": address})
        self.assertRegex("\n".join(log.output), f"cannot serve metrics at .*{address}.*without metrics")
        self.assertTrue(self.store(a, [key(1)], [self.arena.obj(MIB, 1)]).is_successful())

    def test_metrics_are_served_beside_the_tiers_and_the_status_has_them_by_tier(self):
        tiers = [{"type": "host", "bytes": 8 * MIB}, {"type": "file", "path": self.dir, "bytes": 48 * MIB}]
        with self.assertLogs("kvtier", "INFO") as log:
            a = self.opened({"tiers": tiers, "metrics": "127.0.0.1:0"})
        self.lookup(a, [key(1), key(2)])
        [line] = [line for line in log.output if "metrics at" in line]
        with urllib.request.urlopen(line.rpartition(" ")[2], timeout=60) as answer:
            self.assertIn('kvtier_lookup_keys_total{tier="host"} 2', answer.read().decode().splitlines())
        counters = a.report_status()["counters_by_tier"]
        self.assertEqual({name: found["lookup_keys"] for name, found in counters.items()}, {"host": 2, "file": 2})

    def test_contradictory_settings_are_refused_at_the_start(self):
        with self.assertRaisesRegex(ValueError, "move `eviction` into adapter_params"):
            self.opened(eviction={"eviction_policy": "LRU"})
        self.opened(eviction={"eviction_policy": "IsolatedLRU"})
        with self.assertRaisesRegex(ValueError, "empty"):
            self.opened({"tiers": []})
        with self.assertRaisesRegex(ValueError, "flie"):
            self.opened({"type": "flie", "path": "/x"})

    def test_a_closed_adapter_answers(self):
        a = self.opened()
        a.close()
        with self.assertLogs("kvtier"):
            self.assertFalse(self.store(a, [key(1)], [self.arena.obj(MIB, 1)]).is_successful())
            self.assertEqual(self.lookup(a, [key(1)]), [False])
        a.submit_unlock([key(1)])
        self.assertFalse(a.report_status()["is_healthy"])
        self.assertTrue(os.path.exists(self.dir))


if __name__ == "__main__":
    unittest.main()
