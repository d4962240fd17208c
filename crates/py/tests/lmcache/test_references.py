"""References of LMCache's objects come back where a call is cancelled, fails, or never begins."""

import asyncio
import concurrent.futures
import threading
import time
from unittest import mock

from gds import Gds
from kvtier.lmcache import gds as plugin
from test_remote import CHUNK, Engine

LIMIT_SECONDS = 600


class Failed(Exception):
    """What a test makes LMCache's allocator raise."""


# What was allocated. LMCache frees, with a warning, an object that Python destroys before it is released: these live on.
GIVEN = []


def failing(allocate, good):
    """An allocator that fails after some good calls."""
    begin = len(GIVEN)

    def one(*args, **more):
        if len(GIVEN) - begin >= good:
            raise Failed
        GIVEN.append(allocate(*args, **more))
        return GIVEN[-1]

    return one


def until(done):
    """Waits for what happens by itself: a chunk that was saved is found a little earlier than its object is released."""
    limit = time.monotonic() + LIMIT_SECONDS
    while not done() and time.monotonic() < limit:
        time.sleep(0.01)


class Loads(Gds):
    def setUp(self):
        super().setUp()
        self.engine_now = engine = self.engine()
        tokens = list(range(3 * CHUNK))
        self.stored(engine, tokens, len(tokens))
        self.now, self.wanted = self.backend(engine), self.keys(engine, tokens)
        until(lambda: self.pinned(engine) == 0)

    def on_loop(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.now.loop).result(LIMIT_SECONDS)

    def test_where_memory_fails_half_way(self):
        host = self.now.local_cpu_backend
        for load in (
            lambda: self.now.batched_get_blocking(self.wanted),
            lambda: self.on_loop(self.now.batched_get_non_blocking("id", self.wanted)),
        ):
            with mock.patch.object(host, "allocate", failing(host.allocate, 2)), self.assertRaises(Failed):
                load()
            self.assertEqual(self.pinned(self.engine_now), 0)

    def test_where_the_load_is_cancelled_while_it_waits_for_memory(self):
        host, waits, goes_on = self.now.local_cpu_backend, threading.Event(), threading.Event()
        allocate, ended = self.now._allocate_each, threading.Event()

        def slow(*args, **more):
            waits.set()
            goes_on.wait(LIMIT_SECONDS)
            GIVEN.append(host_allocate(*args, **more))
            return GIVEN[-1]

        def watched(*args):
            # Whatever follows the allocation on its thread comes before the next thing that runs there.
            try:
                return allocate(*args)
            finally:
                ended.set()

        host_allocate = host.allocate

        async def cancelled():
            asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
            task = asyncio.ensure_future(self.now.batched_get_non_blocking("id", self.wanted))
            await asyncio.to_thread(lambda: None)
            while not waits.is_set():
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            goes_on.set()
            # The only thread of the executor gets to this when the allocation has ended there.
            await asyncio.to_thread(lambda: None)
            return task.cancelled()

        with mock.patch.object(host, "allocate", slow), mock.patch.object(self.now, "_allocate_each", watched):
            self.assertTrue(self.on_loop(cancelled()))
        self.assertTrue(ended.is_set())
        self.assertEqual(self.pinned(self.engine_now), 0)


class Saves(Gds):
    def setUp(self):
        super().setUp()
        self.engine_now = engine = self.engine()
        self.now, [self.key, self.other] = self.backend(engine), self.keys(engine, list(range(2 * CHUNK)))
        self.obj, self.second = self.new(), self.new()

    def new(self):
        metadata = self.engine_now.metadata
        obj = self.engine_now.storage_manager.allocate(metadata.get_shapes(), metadata.get_dtypes())
        obj.tensor.zero_()
        self.addCleanup(obj.ref_count_down)
        return obj

    def test_that_are_cancelled_before_they_begin(self):
        held = threading.Event()
        self.now.loop.call_soon_threadsafe(held.wait)
        [future] = self.now.batched_submit_put_task([self.key], [self.obj])
        future.cancel()
        held.set()
        self.released()

    def test_whose_tasks_are_cancelled_before_they_begin(self):
        held, received = threading.Event(), []
        self.now.loop.call_soon_threadsafe(held.wait)
        [future] = self.now.batched_submit_put_task([self.key], [self.obj], on_complete_callback=received.append)

        def cancel_all():
            for task in asyncio.all_tasks(self.now.loop):
                task.cancel()

        self.now.loop.call_soon_threadsafe(cancel_all)
        held.set()
        concurrent.futures.wait([future], LIMIT_SECONDS)
        self.released()
        self.assertEqual(received, [], "nothing was stored")

    def test_without_a_shape_of_lmcache(self):
        shape = plugin.shape

        def some(obj):
            if obj is self.obj:
                raise AssertionError("no such format")
            return shape(obj)

        with mock.patch.object(plugin, "shape", some), self.assertLogs("kvtier", "ERROR") as log:
            [future] = self.now.batched_submit_put_task([self.key, self.other], [self.obj, self.second])
            future.result(LIMIT_SECONDS)
        self.assertIn("no such format", "".join(log.output))
        self.released()
        self.assertEqual([self.now.contains(key) for key in (self.key, self.other)], [False, True])

    def test_that_fail_with_an_unknown_error(self):
        with mock.patch.object(plugin, "memory", side_effect=Failed("unheard of")), self.assertLogs("kvtier", "WARNING") as log:
            [future] = self.now.batched_submit_put_task([self.key], [self.obj])
            future.result(LIMIT_SECONDS)
        self.assertIn("unheard of", "".join(log.output))
        self.released()

    def test_on_a_closed_loop(self):
        closed = asyncio.new_event_loop()
        closed.close()
        with mock.patch.object(self.now, "loop", closed), self.assertLogs("kvtier", "WARNING"):
            self.assertIsNone(self.now.batched_submit_put_task([self.key], [self.obj]))
        self.released()

    def released(self):
        """Looked at on the loop, after all that it had to do."""

        async def there():
            for _ in range(4):
                await asyncio.sleep(0)
            keys = [self.now.exists_in_put_tasks(key) for key in (self.key, self.other)]
            return keys, [obj.get_ref_count() for obj in (self.obj, self.second)]

        seen = asyncio.run_coroutine_threadsafe(there(), self.now.loop).result(LIMIT_SECONDS)
        self.assertEqual(seen, ([False, False], [1, 1]))


class Close(Gds):
    def setUp(self):
        super().setUp()
        self.engine_now = engine = self.engine()
        self.now, [self.key] = self.backend(engine), self.keys(engine, list(range(CHUNK)))
        self.now._gpu = mock.Mock()

    def on_loop(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.now.loop).result(LIMIT_SECONDS)

    def test_close_on_its_own_loop_does_not_wait_and_frees_gpu_memory_once(self):
        self.on_loop(self.now.batched_async_contains("id", [self.key]))

        async def close():
            self.now.close()

        self.on_loop(close())
        self.now.close()
        self.now._gpu.close.assert_called_once_with()
        with self.assertRaisesRegex(Exception, "closed"):
            self.on_loop(self.now.batched_async_contains("id", [self.key]))

    def test_beside_a_loop_that_is_stuck(self):
        self.on_loop(self.now.batched_async_contains("id", [self.key]))
        held = threading.Event()
        self.now.loop.call_soon_threadsafe(held.wait)
        self.now.close()
        self.now._gpu.close.assert_called_once_with()
        held.set()

    def test_gpu_memory_under_a_hanging_medium_stays_allocated(self):
        tiers = mock.Mock(wraps=self.now._tiers)
        tiers.close.side_effect = TimeoutError("a medium still holds memory of a batch")
        opened, self.now._tiers = self.now._tiers, tiers
        with self.assertRaises(TimeoutError):
            self.now.close()
        self.now.close()
        self.now._gpu.close.assert_not_called()
        opened.close()


class RemoteLoads(Engine):
    def allocated(self):
        return self.engine_now.storage_manager.allocator_backend.memory_allocator.pin_allocator.num_active_allocations

    def test_where_memory_fails_half_way(self):
        for n, meta in enumerate((False, True)):
            base, self.dir = self.dir, f"{self.dir}/{meta}"
            tokens = [token + 1000 * n for token in range(3 * CHUNK + 5)]
            self.engine_now = engine = self.engine({"save_chunk_meta": meta}, save_unfull_chunk=True)
            self.stored(engine, tokens, len(tokens))
            remote = engine.storage_manager.storage_backends["RemoteBackend-kvtier"].connection.getWrappedConnector()
            keys = [key for _, _, key in engine.token_database.process_tokens(tokens)]
            until(lambda: self.allocated() == 0)
            # With headers the last chunk, which is shorter, gets its memory after those of full length were loaded.
            for good in (1, 3):
                broken = mock.Mock(allocate=failing(remote.local_cpu_backend.allocate, good))
                with mock.patch.object(remote, "local_cpu_backend", broken), self.assertRaises(Failed):
                    asyncio.run_coroutine_threadsafe(remote.batched_get(keys), engine.storage_manager.loop).result(LIMIT_SECONDS)
                self.assertEqual(self.allocated(), 0, (meta, good))
            self.stop()
            self.dir = base
