"""The connector and the store with malicious or careless callers."""

import asyncio
import gc
import mmap
import os
import select
import threading
import time
import unittest

import kvtier
import scripts
from contract import Wrapper
from kvtier import Key, Store, errors
from test_connector import ENGINE, MIB, Case, aligned, filled, key

NIGHTLY = os.environ.get("KVTIER_NIGHTLY") == "1"
SUBMITS = 1_000_000 if NIGHTLY else 20_000
SMALL = 4096


def rss():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


class Buffers(Case):
    def test_buffers_may_be_dropped_at_once(self):
        w = self.wrapped(bytes_max=512 * MIB)
        futures = []
        for n in range(32):
            futures.append(w.submit("submit_batch_set", [key(n)], [filled(n)]))
            gc.collect()
        self.assertTrue(all(w.wait(f)[0] for f in futures))
        loads = []
        for n in range(32):
            loads.append(w.submit("submit_batch_get", [key(n)], [aligned(MIB)]))
            gc.collect()
        self.assertEqual([w.wait(f)[2] for f in loads], [[True]] * 32, "into memory without another reference")
        into = [aligned(MIB) for _ in range(32)]
        self.assertEqual(w.get([key(n) for n in range(32)], into)[2], [True] * 32)
        self.assertTrue(all(v.tobytes() == filled(n).tobytes() for n, v in enumerate(into)))

    def test_a_borrowed_buffer_cannot_be_resized_released_or_unmapped_and_is_returned(self):
        client = self.client()
        data, view, memory = bytearray(MIB), memoryview(bytearray(MIB)), mmap.mmap(-1, MIB)
        # Without a drain, submitted batches keep their memory.
        client.submit_batch_set([key(1), key(2), key(3)], [data, view, memory])
        for let_go in (lambda: data.extend(b"x"), view.release, memory.close):
            with self.assertRaises(BufferError):
                let_go()
        w = Wrapper(client)
        self.addCleanup(w.close)
        limit = time.monotonic() + 60
        while client.pending:
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.01)
        w.exists([key(1)])
        client.drain_completions()
        data.extend(b"x")
        view.release()
        memory.close()

    def test_wrong_lengths_write_nothing_beyond_their_memory(self):
        w = self.wrapped()
        self.assertTrue(w.set([key(1)], [filled(1)])[0])
        around = aligned(4 * MIB)
        with self.assertLogs("kvtier"):
            for begin, end in [(MIB, 2 * MIB - 4096), (MIB, 2 * MIB - 1), (MIB, 2 * MIB + 4096), (MIB, MIB + 1), (MIB, MIB)]:
                around.cast("B")[:] = b"\xaa" * (4 * MIB)
                self.assertEqual(w.get([key(1)], [around[begin:end]])[2], [False], (begin, end))
                self.assertEqual(around[:begin].tobytes(), b"\xaa" * begin)
                self.assertEqual(around[end:].tobytes(), b"\xaa" * (4 * MIB - end))
            self.assertFalse(w.set([key(2)], [around[:0]])[0], "a chunk of nothing")


class Threads(Case):
    def test_many_threads_submit(self):
        w = self.wrapped(bytes_max=512 * MIB)
        wrong = []

        def work(t):
            for i in range(20):
                n = t * 1000 + i
                into = aligned(64 << 10)
                ok = w.set([key(n)], [filled(n, 64 << 10)])[0]
                if not ok or w.get([key(n)], [into])[2] != [True] or into.tobytes() != filled(n, 64 << 10).tobytes():
                    wrong.append(n)

        self.all_of(8, work)
        self.assertEqual(wrong, [])

    def all_of(self, count, work):
        threads = [threading.Thread(target=work, args=(t,)) for t in range(count)]
        [t.start() for t in threads]
        [t.join() for t in threads]

    def test_threads_submit_and_drain_at_once_without_a_lock_of_their_own(self):
        client = self.client(bytes_max=512 * MIB)
        self.addCleanup(client.close)
        lock, submitted, ended, stop = threading.Lock(), [], [], threading.Event()

        def submit(t):
            mine = []
            for i in range(50):
                n = t * 1000 + i
                mine.append(client.submit_batch_set([key(n)], [filled(n, SMALL)]))
                mine.append(client.submit_batch_exists([key(n)]))
                mine.append(client.submit_batch_get([key(n)], [aligned(SMALL)]))
                mine.append(client.submit_batch_delete([key(n + 500)]))
            with lock:
                submitted.extend(mine)

        def drain(_):
            poll = select.poll()
            poll.register(client.event_fd(), select.POLLIN)
            while not (stop.is_set() and not client.pending):
                poll.poll(20)
                found = client.drain_completions()
                with lock:
                    ended.extend(found)

        drains = [threading.Thread(target=drain, args=(t,)) for t in range(3)]
        [t.start() for t in drains]
        self.all_of(8, submit)
        stop.set()
        [t.join(60) for t in drains]
        self.assertEqual(len(set(submitted)), 8 * 50 * 4, "ids are unique")
        self.assertEqual(sorted(future for future, *_ in ended), sorted(submitted), "each ends once, in one drain")
        self.assertTrue(all(ok for _, ok, _, _ in ended))

    def test_a_store_is_closed_while_threads_use_it(self):
        store = Store(tiers=[{"type": "file", "path": self.dir.name, "bytes": 64 * MIB, "free_min": 0, **ENGINE}])
        begun, odd = threading.Barrier(5), []

        def work(t):
            begun.wait()
            try:
                for n in range(t * 1000, t * 1000 + 1000):
                    store.save([Key("m", n.to_bytes(8, "big"))], [b"x" * SMALL])
                    store.load([Key("m", n.to_bytes(8, "big"))], [bytearray(SMALL)])
            except errors.Closed:
                pass
            except Exception as e:
                odd.append(e)

        threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
        [t.start() for t in threads]
        begun.wait()
        store.close()
        store.close()
        [t.join(60) for t in threads]
        self.assertEqual(odd, [])


class Closed(Case):
    def test_a_closed_connector_answers_and_does_not_raise(self):
        w = self.wrapped()
        w.set([key(1)], [filled(1)])
        w.close()
        again = Wrapper(w.client)
        with self.assertLogs("kvtier"):
            self.assertEqual(again.set([key(2)], [filled(2)])[0], False)
            self.assertEqual(again.get([key(1)], [aligned(MIB)])[2], [False])
            self.assertEqual(again.exists([key(1)])[2], [False])
            self.assertEqual(again.delete([key(1)])[2], [False])
        again.close()
        self.assertEqual((w.client.pending, w.client.drain_completions()), (0, []))

    def test_batches_submitted_before_close_complete_and_are_drained_after_it(self):
        client = self.client(bytes_max=512 * MIB)
        futures = {client.submit_batch_set([key(n)], [filled(n)]) for n in range(32)}
        client.close()
        ended = {future: ok for future, ok, _, _ in client.drain_completions()}
        limit = time.monotonic() + 60
        while len(ended) < 32 and time.monotonic() < limit:
            ended.update((future, ok) for future, ok, _, _ in client.drain_completions())
        self.assertEqual(ended, dict.fromkeys(futures, True))
        again = self.wrapped(bytes_max=512 * MIB)
        self.assertEqual(again.exists([key(n) for n in range(32)])[2], [True] * 32)

    def test_a_closed_store_raises_in_an_event_loop(self):
        store = Store(tiers=[{"type": "host", "bytes": MIB}])

        async def work():
            await store.asave([Key("m", b"1")], [b"x" * SMALL])
            store.close()
            with self.assertRaises(errors.Closed):
                await store.aload([Key("m", b"1")], [bytearray(SMALL)])

        asyncio.run(work())


def entries(what):
    return len(os.listdir(f"/proc/self/{what}"))


def soon_at_most(what, most):
    """How many there are, when they are few enough: threads of the tier's open and close files now and then, or end a moment later."""
    limit = time.monotonic() + 60
    while (now := entries(what)) > most and time.monotonic() < limit:
        time.sleep(0.05)
    return now


class Flat(Case):
    def test_memory_stays_flat(self):
        """Saves, loads, lookups and removes of small chunks, each of them a batch of its own."""
        w = self.wrapped()
        chunk, into = filled(1, SMALL), [aligned(SMALL) for _ in range(25)]
        self.assertTrue(w.set([key(1)], [chunk])[0])

        def kinds(buffer):
            yield w.submit("submit_batch_exists", [key(1000)])
            yield w.submit("submit_batch_get", [key(1)], [buffer])
            yield w.submit("submit_batch_set", [key(1)], [chunk])
            yield w.submit("submit_batch_delete", [key(2000)])

        def some(count):
            for _ in range(0, count, 100):
                last = [future for buffer in into for future in kinds(buffer)]
                self.assertTrue(all(w.wait(f)[0] for f in last))

        some(SUBMITS // 10)
        # The journal's file is opened when there is something to write for the first time, which may be later.
        before, fds = rss(), entries("fd") + 1
        for _ in range(9):
            some(SUBMITS // 10)
        self.assertLess(rss() - before, 8 * MIB)
        self.assertLessEqual(soon_at_most("fd", fds), fds)
        self.assertTrue(all(buffer.tobytes() == chunk.tobytes() for buffer in into))

    def test_opening_and_closing_leaves_nothing_behind(self):
        def once():
            w = Wrapper(self.client())
            self.assertTrue(w.set([key(1)], [filled(1, SMALL)])[0])
            w.close()
            del w
            gc.collect()

        [once() for _ in range(3)]
        before, fds, tasks = rss(), entries("fd"), entries("task")
        [once() for _ in range(30)]
        self.assertLess(rss() - before, 16 * MIB)
        self.assertLessEqual(soon_at_most("fd", fds), fds)
        self.assertLessEqual(soon_at_most("task", tasks), tasks)


class Ends(Case):
    ENDS = ("pass", "import sys; sys.exit(3)", "raise RuntimeError('on purpose')", "del c", "import os; os._exit(0)")

    def well(self, how, script):
        code, said = scripts.run(script.replace("HOW", how).replace("DIR", repr(self.dir.name)))
        with self.subTest(how, said=said):
            self.assertIn(code, (0, 1, 3))
            self.assertNotIn("panicked", said)

    def test_an_interpreter_may_end_with_work_in_flight(self):
        for how in self.ENDS:
            self.well(how, """
                import kvtier
                from test_connector import filled, aligned, key
                c = kvtier.Connector(tiers=[{"type": "file", "path": DIR, "bytes": 1 << 28}])
                c.submit_batch_set([key(n) for n in range(16)], [filled(n, 4 << 20) for n in range(16)])
                c.submit_batch_get([key(n) for n in range(16)], [aligned(4 << 20) for n in range(16)])
                HOW
            """)
        w = self.wrapped(bytes_max=1 << 28)
        for n in range(16):
            into = aligned(4 << 20)
            if w.get([key(n)], [into])[2] == [True]:
                self.assertEqual(into.tobytes(), filled(n, 4 << 20).tobytes())

    def test_an_interpreter_may_end_while_other_threads_wait(self):
        for how in self.ENDS:
            self.well(how, """
                import threading, time
                from kvtier import Key, Store
                c = Store(tiers=[{"type": "file", "path": DIR, "bytes": 1 << 28, "free_min": 0}])
                def work(t):
                    for n in range(1000):
                        c.save([Key("m", bytes([t]) + n.to_bytes(4, "big"))], [bytearray(1 << 20)])
                for t in range(3):
                    threading.Thread(target=work, args=(t,), daemon=True).start()
                time.sleep(0.3)
                HOW
            """)

    def test_an_event_loop_may_end_with_work_in_flight(self):
        code, said = scripts.run(f"""
            import asyncio
            from kvtier import Key, Store
            store = Store(tiers=[{{"type": "file", "path": {self.dir.name!r}, "bytes": 1 << 28, "free_min": 0}}])
            async def work():
                tasks = [asyncio.ensure_future(store.asave([Key("m", bytes([n]))], [bytearray(4 << 20)])) for n in range(16)]
                await asyncio.sleep(0)
            asyncio.run(work())
            asyncio.run(work())
            store.close()
        """)
        self.assertEqual(code, 0, said)

    def test_a_second_interpreter_of_the_process_may_use_it_and_end(self):
        for how in ("c.close()", "pass", "del c"):
            self.well(how, """
                import kvtier
                try:
                    import _xxsubinterpreters as interpreters
                except ImportError:
                    raise SystemExit(0)
                tiers = [{"type": "file", "path": DIR, "bytes": 1 << 28}]
                lines = [
                    "import kvtier",
                    "from test_connector import filled, key",
                    f"c = kvtier.Connector(tiers={tiers})",
                    "c.submit_batch_set([key(n) for n in range(8)], [filled(n, 4 << 20) for n in range(8)])",
                    "HOW",
                ]
                other = interpreters.create()
                interpreters.run_string(other, chr(10).join(lines))
            """)

    def test_after_a_fork_the_child_gets_an_error_and_the_parent_continues(self):
        code, said = scripts.run("""
            import os, kvtier
            from contract import Wrapper
            from test_connector import filled, aligned, key
            w = Wrapper(kvtier.Connector(tiers=[{"type": "file", "path": DIR, "bytes": 1 << 28}]))
            assert w.set([key(1)], [filled(1)])[0]
            child = os.fork()
            if child == 0:
                for call in (lambda: w.client.event_fd(), lambda: w.client.submit_batch_exists([key(1)]), w.client.close):
                    try:
                        call()
                    except RuntimeError as e:
                        assert "fork" in str(e), e
                    else:
                        os._exit(7)
                own = kvtier.Connector(tiers=[{"type": "file", "path": DIR, "bytes": 1 << 28}])
                mine = Wrapper(own)
                assert mine.get([key(1)], [aligned(1 << 20)])[2] == [True]
                mine.close()
                del w, own, mine
                raise SystemExit(5)
            assert os.waitpid(child, 0)[1] == 5 << 8, "the child's own end"
            assert w.get([key(1)], [aligned(1 << 20)])[2] == [True]
            w.close()
        """.replace("DIR", repr(self.dir.name)))
        self.assertEqual(code, 0, said)

    def test_after_a_fork_every_method_of_a_store_raises_in_the_child(self):
        code, said = scripts.run("""
            import asyncio, os
            from kvtier import Key, Store
            store, one = Store(tiers=[{"type": "host", "bytes": 1 << 20}]), [Key("m", b"1")]
            store.save(one, [b"x" * 4096])
            child = os.fork()
            if child == 0:
                async def later():
                    await store.alookup(one)
                calls = [lambda: store.save(one, [b"x"]), lambda: store.load(one, [bytearray(1)]), lambda: store.lookup(one),
                         lambda: store.remove(one), store.usage, store.status, store.close, lambda: asyncio.run(later())]
                for call in calls:
                    try:
                        call()
                    except RuntimeError as e:
                        assert "fork" in str(e), e
                    else:
                        os._exit(7)
                raise SystemExit(5)
            assert os.waitpid(child, 0)[1] == 5 << 8, "the child's own end"
            assert store.lookup(one) == [4096]
            store.close()
        """)
        self.assertEqual(code, 0, said)


if __name__ == "__main__":
    unittest.main()
