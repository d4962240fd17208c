"""Ownership of buffers: those reused after a timeout, given up, borrowed twice, or dropped while a tier uses them."""

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
import time
import unittest

import kvtier
from bucket import Server
from kvtier import Key, Store, errors
from test_connector import ENGINE, MIB, Case, aligned, filled, key

BIG = 16 * MIB
MINE = b"\xaa"


class Lent(Case):
    def spec(self):
        return {"type": "file", "path": self.dir.name, "bytes": 1 << 30, "free_min": 0, **ENGINE}

    def store(self, **more):
        store = Store(tiers=[self.spec()], **more)
        self.addCleanup(store.close)
        return store

    def with_chunks(self, count):
        """A store with ``count`` large chunks, and their keys."""
        store, keys = self.store(), [Key("m", bytes([n])) for n in range(count)]
        for n, k in enumerate(keys):
            store.save([k], [filled(n, BIG)])
        return store, keys


def whole(memory):
    return memory.cast("B") if isinstance(memory, memoryview) else memory


def takes(buffers):
    """Buffers whose batch has completed."""
    mine = MINE * max(len(whole(buffer)) for buffer in buffers) if buffers else b""
    for buffer in buffers:
        whole(buffer)[:] = mine[: len(whole(buffer))]


class Ends(Lent):
    def is_still_mine(self, buffers):
        for buffer in buffers:
            self.assertEqual(bytes(whole(buffer)).count(MINE), len(whole(buffer)), "written to after the completion")

    def test_a_late_batch_completes_when_no_medium_writes_any_more(self):
        store, keys = self.with_chunks(4)
        store.close()
        late, all_of_it = self.store(timeout_seconds=0.004), []
        for _ in range(6):
            into = [aligned(BIG) for _ in keys]
            try:
                late.load(keys, into)
            except errors.Timeout:
                takes(into)
                all_of_it += into
        late.close()
        self.is_still_mine(all_of_it)

    def test_a_batch_of_a_connector_waits_for_its_buffers(self):
        store, keys = self.with_chunks(4)
        store.close()
        client, all_of_it = kvtier.Connector(tiers=[self.spec()], timeout_seconds=0.004), []
        for _ in range(6):
            into = [aligned(BIG) for _ in keys]
            client.submit_batch_get([str(k) for k in keys], into)
            while not (ends := client.drain_completions()):
                time.sleep(0.001)
            [(_, _, _, each)] = ends
            misses = [buffer for buffer, hit in zip(into, each) if not hit]
            takes(misses)
            all_of_it += misses
        client.close()
        self.is_still_mine(all_of_it)

    def test_the_wait_for_returned_buffers_has_a_limit(self):
        store, keys = self.with_chunks(4)
        store.close()
        tiers = kvtier._native.Tiers({"tiers": [self.spec()]}, timeout_seconds=0.004, return_timeout_seconds=0.001)
        self.addCleanup(tiers.close)
        names = [str(keys[n % 4]) for n in range(24)]
        for _ in range(20):
            into = [aligned(BIG) for _ in names]
            tiers.load(names, into)
            try:
                # A completion that comes too early is detected here: a buffer still changes.
                tiers.load(names, into)
            except ValueError as e:
                return self.assertRegex(str(e), Twice.REFUSED)
        self.fail("every end waited for all memory")

    def test_a_cancelled_load_ends_before_it_raises(self):
        store, keys = self.with_chunks(4)

        async def work():
            into = [aligned(BIG) for _ in keys]
            load = asyncio.ensure_future(store.aload(keys, into))
            await asyncio.sleep(0)
            for _ in range(3):
                load.cancel()
                await asyncio.sleep(0)
            with self.assertRaises(asyncio.CancelledError):
                await load
            takes(into)
            return into

        into = [buffer for _ in range(3) for buffer in asyncio.run(work())]
        store.close()
        self.is_still_mine(into)

    def test_a_cancelled_save_raises_after_its_last_read(self):
        store, size = self.store(), 2 * MIB
        # More than the tier has threads: some would be read only after they were written to.
        keys, data = [Key("m", bytes([n])) for n in range(48)], [filled(n, size) for n in range(48)]

        async def work():
            save = asyncio.ensure_future(store.asave(keys, data))
            await asyncio.sleep(0)
            save.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await save
            takes(data[::-1])

        asyncio.run(work())
        for n, k in enumerate(keys):
            into = aligned(size)
            if store.load([k], [into]) == [size]:
                self.assertEqual(into.tobytes()[:8], filled(n, size).tobytes()[:8])
                self.assertEqual(into.tobytes(), filled(n, size).tobytes())

    def test_an_exception_of_a_signal_handler_is_raised_after_the_operation(self):
        store, keys = self.with_chunks(4)
        names, into = [keys[n % 4] for n in range(24)], [aligned(BIG) for n in range(24)]

        class Rung(Exception):
            pass

        def ring(*_):
            raise Rung

        before = signal.signal(signal.SIGALRM, ring)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        with self.assertRaises(Rung):
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            store.load(names, into)
            time.sleep(1)
        takes(into)
        store.close()
        self.is_still_mine(into)

    def test_a_second_close_waits_too(self):
        store, keys = self.with_chunks(4)
        names, into = [keys[n % 4] for n in range(24)], [aligned(BIG) for n in range(24)]
        before = store.status().counters["unfixed_requests"]
        load = threading.Thread(target=self.quietly, args=(lambda: store.load(names, into),))
        load.start()
        self.until(lambda: store.status().counters["unfixed_requests"] > before or not load.is_alive())
        first = threading.Thread(target=store.close)
        first.start()
        self.until(lambda: not store.status().healthy)
        store.close()
        takes(into)
        [thread.join(60) for thread in (load, first)]
        self.is_still_mine(into)

    def quietly(self, work):
        try:
            work()
        except errors.Closed:
            pass

    def until(self, what):
        limit = time.monotonic() + 60
        while not what():
            self.assertLess(time.monotonic(), limit)


class Twice(Lent):
    REFUSED = "another load is writing into this memory"

    def test_two_loads_of_a_batch_into_the_same_memory_are_refused(self):
        w = self.wrapped()
        w.set([key(1), key(2)], [filled(1), filled(2)])
        into = aligned(2 * MIB)
        for pair in [(into[:MIB], into[:MIB]), (into[:MIB], into[MIB - 1 : 2 * MIB - 1]), (into[4096:], into[:8192])]:
            with self.subTest(pair), self.assertLogs("kvtier"):
                ok, error, each = w.get([key(1), key(2)], pair)
                self.assertEqual((ok, each), (False, [False, False]))
                self.assertIn(self.REFUSED, error)
        self.assertEqual(w.get([key(1), key(2)], [into[:MIB], into[MIB:]])[2], [True, True], "side by side is fine")
        self.assertEqual(into.tobytes(), filled(1).tobytes() + filled(2).tobytes())

    def test_pieces_of_a_chunk_need_separate_memory(self):
        store = self.store()
        store.save([Key("m", b"1")], [b"ab" * 4096])
        into = bytearray(4096)
        with self.assertRaisesRegex(ValueError, self.REFUSED):
            store.load([Key("m", b"1")], [(into, into)])
        self.assertEqual(store.load([Key("m", b"1")], [(into, bytearray(4096))]), [8192], "it is free again")

    def test_memory_of_a_load_in_flight_is_refused_for_loads_and_saves(self):
        w = self.wrapped(bytes_max=512 * MIB)
        self.addCleanup(setattr, logging.getLogger("kvtier"), "disabled", False)
        logging.getLogger("kvtier").disabled = True
        w.set([key(1)], [filled(1, BIG)])
        w.set([key(2, salt="b")], [filled(2, BIG)])
        for again in (lambda into: w.submit("submit_batch_get", [key(2, salt="b")], [into]),
                      lambda into: w.submit("submit_batch_set", [key(3)], [into])):
            into, refused = aligned(BIG), False
            # The first may have ended before the second came; not every time.
            for _ in range(100):
                first = w.submit("submit_batch_get", [key(1)], [into])
                second = w.wait(again(into))
                self.assertEqual(w.wait(first)[2], [True])
                if not second[0] and self.REFUSED in second[1]:
                    refused = True
                    break
                w.delete([key(3)])
            self.assertTrue(refused)
            self.assertEqual(into.tobytes(), filled(1, BIG).tobytes())


class Descriptors(Lent):
    def test_a_descriptor_closed_by_its_reader_is_neither_written_nor_closed(self):
        client = self.client()
        fd = client.event_fd()
        # Closed, and at once another file's: between the two a thread of the tier's could get the number.
        other = os.open(os.path.join(self.dir.name, "other"), os.O_CREAT | os.O_RDWR)
        os.dup2(other, fd)
        os.close(other)
        client.submit_batch_set([key(1)], [filled(1)])
        limit = time.monotonic() + 60
        while not client.drain_completions():
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.01)
        client.close()
        del client
        gc.collect()
        self.assertEqual(os.fstat(fd).st_size, 0, "another file has that number now")
        os.close(fd)

    def test_event_loops_that_were_closed_leave_nothing_behind(self):
        store = Store(tiers=[{"type": "host", "bytes": MIB}])
        self.addCleanup(store.close)
        fds = lambda: len(os.listdir("/proc/self/fd"))

        async def work():
            await store.asave([Key("m", b"1")], [b"x" * 4096])

        def once(leave):
            loop = asyncio.new_event_loop()
            if leave:
                # Its completion is never delivered.
                loop.call_soon(lambda: loop.create_task(work()))
                loop.call_soon(loop.stop)
                loop.run_forever()
                for task in asyncio.all_tasks(loop):
                    task._log_destroy_pending = False
            else:
                loop.run_until_complete(work())
            loop.close()

        [once(leave) for leave in (False, True)]
        before = fds()
        for n in range(20):
            once(n % 2 == 1)
        gc.collect()
        self.assertLessEqual(fds(), before + 2, "the next loop releases the resources of the last")


class Dropped(Lent):
    def test_a_drop_that_waits_does_not_block_other_python_threads(self):
        server = Server()
        self.addCleanup(server.stop)
        proxy = Proxy(server.port)
        self.addCleanup(proxy.close)
        spec = {**server.spec(), "s3_endpoint": f"http://localhost:{proxy.port}"}
        c = kvtier.Connector(tiers=[{"type": "host", "bytes": 8 * MIB}, spec], timeout_seconds=240.0)
        c.submit_batch_set([key(1)], [filled(1)])
        self.assertTrue(proxy.asked.wait(60))
        threading.Timer(0.2, proxy.goes_on.set).start()
        began = time.monotonic()
        del c
        gc.collect()
        self.assertLess(time.monotonic() - began, 120, "the thread that answers could not run")


class Proxy:
    """A proxy on Python threads, which forwards a PUT only when the test allows it."""

    def __init__(self, port):
        self.asked, self.goes_on = threading.Event(), threading.Event()
        self.to = port
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.socket.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.to))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(one, other), daemon=True).start()

    def pump(self, one, other):
        try:
            while data := one.recv(1 << 16):
                if data.startswith(b"PUT") and b".kvtier" not in data[:200]:
                    self.asked.set()
                    self.goes_on.wait(60)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.goes_on.set()
        self.socket.close()


if __name__ == "__main__":
    unittest.main()
