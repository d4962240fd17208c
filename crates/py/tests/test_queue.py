"""The public queue: registered memory, batches without waiting, and their ends."""

import asyncio
import hashlib
import mmap
import os
import select
import signal
import tempfile
import threading
import unittest

import kvtier
from kvtier import Completion, Key, Queue, errors

ROW = 64 * 1024
ENGINE = {"engine": os.environ["KVTIER_ENGINE"]} if "KVTIER_ENGINE" in os.environ else {}


def keys(numbers):
    return [Key("org/model", hashlib.sha256(b"%d" % n).digest()) for n in numbers]


def fill(n):
    return bytes([n % 251]) * (ROW - 1) + b"!"


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(self.dir.cleanup)

    def open(self, **more):
        spec = {"type": "file", "path": self.dir.name, "bytes": "64MiB", "free_min": 0, **ENGINE}
        queue = Queue(tiers=[spec], **more)
        self.addCleanup(queue.close)
        return queue

    def memory(self, rows=16):
        return mmap.mmap(-1, rows * ROW)

    def fill(self, memory, rows):
        for row in rows:
            memory[row * ROW : (row + 1) * ROW] = fill(row)

    def one(self, queue, batch):
        (end,) = queue.drain(60)
        self.assertEqual(end.batch, batch)
        return end


class Batches(Case):
    def test_saves_loads_lookups_and_removes(self):
        queue, memory = self.open(), self.memory()
        region = queue.register(memory)
        self.assertEqual(len(region), 16 * ROW)
        self.fill(memory, range(4))
        batch = queue.save(keys(range(4)), region.rows(range(4), ROW))
        self.assertEqual(self.one(queue, batch), Completion(batch, [1] * 4))
        again = self.one(queue, queue.save(keys([0]), [region[0:ROW]]))
        self.assertEqual((again.results, again.ok), ([0], True))
        found = self.one(queue, queue.lookup(keys(range(6))))
        self.assertEqual((found.results, found.ok, found.error), ([ROW] * 4 + [None] * 2, False, None))
        loaded = self.one(queue, queue.load(keys(range(4)), region.rows(range(8, 12), ROW)))
        self.assertEqual(loaded.results, [ROW] * 4)
        for row in range(4):
            self.assertEqual(memory[(8 + row) * ROW : (9 + row) * ROW], fill(row))
        self.assertEqual(self.one(queue, queue.remove(keys([0, 1]))).results, [1, 1])
        self.assertEqual(self.one(queue, queue.lookup(keys(range(3)), prefix=True)).results, [None] * 3)
        self.assertEqual((queue.pending, queue.poll()), (0, []))
        self.assertEqual(queue.usage().chunks, 2)
        self.assertTrue(queue.status().healthy)

    def test_a_chunk_in_pieces_of_a_region_and_in_other_memory(self):
        queue, memory = self.open(), self.memory()
        region = queue.register(memory)
        self.fill(memory, range(2))
        self.one(queue, queue.save(keys([9]), [(region[0:ROW], region[ROW : 2 * ROW])]))
        other = bytearray(2 * ROW)
        self.assertEqual(self.one(queue, queue.load(keys([9]), [other])).results, [2 * ROW])
        self.assertEqual(bytes(other), fill(0) + fill(1))

    def test_the_descriptor_is_readable_when_a_batch_ended(self):
        queue, memory = self.open(), self.memory()
        region = queue.register(memory)
        poll = select.poll()
        poll.register(queue.event_fd, select.POLLIN)
        self.assertEqual(poll.poll(0), [])
        batch = queue.save(keys([1]), [region[0:ROW]])
        ended = []
        while not ended:
            self.assertTrue(poll.poll(60_000), "the descriptor is not readable")
            ended = queue.poll()
        self.assertEqual([end.batch for end in ended], [batch])

    def test_wait_returns_ends_as_they_come(self):
        queue, memory = self.open(), self.memory()
        region = queue.register(memory)
        self.assertEqual(queue.wait(), [], "nothing is pending")
        batches = {queue.save(keys([n]), [region[n * ROW : (n + 1) * ROW]]) for n in range(8)}
        ended = set()
        while ended != batches:
            ended |= {end.batch for end in queue.wait(60)}

    def test_the_end_of_a_batch_is_awaited(self):
        queue, memory = self.open(), self.memory()
        region = queue.register(memory)
        self.fill(memory, range(8))

        async def run():
            saves = [queue.save(keys([n]), region.rows([n], ROW)) for n in range(8)]
            ends = await asyncio.gather(*(queue.completed(batch) for batch in reversed(saves)))
            self.assertEqual([end.batch for end in ends], saves[::-1])
            cancelled = asyncio.ensure_future(queue.completed(queue.lookup(keys([1]))))
            cancelled.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await cancelled
            return await queue.completed(queue.load(keys(range(8)), region.rows(range(8, 16), ROW)))

        self.assertEqual(asyncio.run(run()).results, [ROW] * 8)
        # The lookup has no awaiter any more: its end is polled.
        self.assertEqual([end.results for end in queue.drain(60)], [[ROW]])

    def test_an_end_that_will_never_come_is_not_awaited(self):
        queue = self.open()
        batch = queue.lookup(keys([1]))
        queue.drain(60)

        async def run(number):
            return await asyncio.wait_for(queue.completed(number), 30)

        for number in (batch, batch + 1):
            with self.assertRaisesRegex(ValueError, "collected once"):
                asyncio.run(run(number))

    def test_threads_collect_every_end_once(self):
        queue, memory = self.open(), self.memory()
        region = queue.register(memory)
        ended, lock = [], threading.Lock()

        def work(first):
            for n in range(first, first + 8):
                queue.save(keys([n]), [region[n * ROW : (n + 1) * ROW]])
                found = queue.wait(60)
                with lock:
                    ended.extend(end.batch for end in found)

        threads = [threading.Thread(target=work, args=(first,)) for first in (0, 8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        ended += [end.batch for end in queue.drain(60)]
        self.assertEqual(sorted(ended), list(range(1, 17)))

    def test_an_error_is_in_the_end_and_not_raised(self):
        queue = self.open()
        end = self.one(queue, queue.load(["no key"], [bytearray(8)]))
        self.assertEqual(end.results, [None])
        self.assertIsInstance(end.error, errors.Invalid)
        end = self.one(queue, queue.save(keys([1, 2]), [bytes(8)]))
        self.assertIn("2 keys and 1 buffers", str(end.error))


class Interrupted(Case):
    """Calls that come while another one runs in the same thread."""

    def setUp(self):
        super().setUp()

        def stuck(*_):
            raise AssertionError("a call waits for the one that it interrupted")

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, stuck))
        self.addCleanup(signal.alarm, 0)
        signal.alarm(60)

    def test_a_signal_handler_may_call_any_method(self):
        queue, seen = self.open(), []

        def handler(*_):
            seen.append(queue.pending)
            seen.append(queue.poll())
            queue.lookup(keys([2]))

        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, handler))

        class Memory(list):
            def __iter__(self):
                signal.raise_signal(signal.SIGUSR1)
                return super().__iter__()

        for call in (queue.save, queue.load):
            call(keys([1]), Memory([bytearray(ROW)]))
        self.assertEqual(len(seen), 4)
        polled = [end.batch for ends in seen[1::2] for end in ends]
        self.assertEqual(sorted(polled + [end.batch for end in queue.drain(60)]), [1, 2, 3, 4])

    def test_memory_may_call_the_queue_when_it_is_released(self):
        queue, seen = self.open(), []

        class Memory(bytearray):
            def __del__(self):
                seen.append((queue.pending, queue.lookup(keys([5])), queue.poll()))

        for n in range(4):
            queue.save(keys([n]), [Memory(ROW)])
            while len(seen) <= n:
                queue.wait(1)
        queue.drain(60)
        self.assertEqual((len(seen), queue.pending), (4, 0))

    def test_an_end_that_a_cancelled_caller_leaves_can_be_awaited_at_once(self):
        queue = self.open()
        batch = queue.lookup(keys([1]))

        async def twice():
            try:
                return await queue.completed(batch)
            except asyncio.CancelledError:
                return await queue.completed(batch)

        class Late:
            """The native queue, whose ends come when the test wants them."""

            is_late = True

            def __getattr__(self, name):
                return getattr(native, name)

            def poll(self):
                return [] if self.is_late else native.poll()

        async def run():
            caller = asyncio.ensure_future(twice())
            await asyncio.sleep(0)
            caller.cancel()
            late.is_late = False
            ended = select.poll()
            ended.register(queue.event_fd, select.POLLIN)
            self.assertTrue(ended.poll(60_000))
            # The end is collected between the cancellation and the second call.
            self.assertEqual(queue.poll(), [])
            return await caller

        native, late = queue._native, Late()
        queue._native = late
        self.assertEqual(asyncio.run(run()).batch, batch)
        self.assertEqual((queue.pending, queue.poll()), (0, []))


class Regions(Case):
    def test_ranges_outside_are_refused(self):
        queue, memory = self.open(), self.memory(2)
        region = queue.register(memory)
        for rows in ([2], [0, 5], [2**62]):
            with self.assertRaises(IndexError):
                region.rows(rows, ROW)
        self.assertEqual(len(region[ROW : 9 * ROW]), ROW, "as slices of bytes end at the end")
        with self.assertRaises(TypeError):
            region[3]
        with self.assertRaises(ValueError):
            region[0:ROW:2]
        with self.assertRaises(ValueError):
            queue.register(b"not to be written")

    def test_the_memory_is_free_after_release_and_close(self):
        queue = self.open()
        first, second = self.memory(), self.memory()
        region = queue.register(first)
        queue.register(second)
        queue.save(keys([1]), [region[0:ROW]])
        with self.assertRaises(BufferError):
            first.close()
        queue.drain(60)
        region.release()
        first.close()
        with self.assertRaises(ValueError):
            region[0:1]
        queue.save(keys(range(4)), queue.register(self.memory()).rows(range(4), ROW))
        queue.close()
        second.close()
        self.assertEqual([end.ok for end in queue.poll()], [True])

    def test_two_loads_into_one_range_are_refused(self):
        queue, memory = self.open(), self.memory()
        region = queue.register(memory)
        self.one(queue, queue.save(keys([1]), [region[0:ROW]]))
        batch = queue.load(keys([1, 1]), [region[0:ROW], region[ROW - 1 : 2 * ROW]])
        self.assertIn("another load is writing", str(self.one(queue, batch).error))

    def test_the_package_exports_it(self):
        self.assertIn("Queue", kvtier.__all__)
        self.assertIn("over", repr(self.open()))


if __name__ == "__main__":
    unittest.main()
