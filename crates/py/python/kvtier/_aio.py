"""Awaits batches of a queue in an event loop.

The loop watches the queue's descriptor and resolves a future per batch. Cancellation needs care, because a batch cannot be cancelled below:

- ``completion`` is for batches without the caller's memory, or whose memory something else keeps. A cancelled caller leaves at once.
- ``shielded`` and ``shielded_all`` are for callers that reuse the memory as soon as they return. A cancelled caller leaves only after the
  batch has completed, and then with ``CancelledError``.
"""

import asyncio
import contextlib
import weakref
from collections.abc import Sequence
from typing import Optional

from . import _native

BatchResult = tuple[Optional[tuple[str, str]], list[int]]


class AsyncQueue:
    """A queue whose completions resolve futures of one event loop. Its methods belong to that loop's thread."""

    def __init__(self, queue: _native.Queue, loop: asyncio.AbstractEventLoop) -> None:
        self.native = queue
        # The loop refers to this object, and a store keeps this object by its loop. A strong reference would keep the loop for ever.
        self._loop = weakref.ref(loop)
        self._waiting: dict[int, asyncio.Future[BatchResult]] = {}
        loop.add_reader(queue.event_fd, self._on_readable)

    def completion(self, batch: int) -> "asyncio.Future[BatchResult]":
        """Resolves when the batch completes. Cancelling the future does not cancel the batch, which keeps its memory until it completes."""
        future: asyncio.Future[BatchResult] = asyncio.get_running_loop().create_future()
        self._waiting[batch] = future
        return future

    async def shielded(self, batch: int) -> BatchResult:
        """Waits for the batch. If the caller is cancelled, raises ``CancelledError`` after the batch has completed."""
        future = self.completion(batch)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                try:
                    await asyncio.wait([future])
                except asyncio.CancelledError:
                    continue
            raise

    async def shielded_all(self, batches: Sequence[int]) -> list[BatchResult]:
        """As ``shielded`` for several batches, at least one. Without tasks: a task that is cancelled before it starts would not wait."""
        if len(batches) == 1:
            return [await self.shielded(batches[0])]
        futures = [self.completion(batch) for batch in batches]
        cancelled = None
        while not all(future.done() for future in futures):
            try:
                await asyncio.wait(futures)
            except asyncio.CancelledError as e:
                cancelled = e
        if cancelled is not None:
            raise cancelled
        return [future.result() for future in futures]

    def detach(self) -> None:
        """Detaches the queue from the loop. Call it only after ``close()`` of the tiers: then all batches have completed."""
        self._on_readable()
        loop = self._loop()
        if loop is not None:
            loop.remove_reader(self.native.event_fd)
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()

    def detach_threadsafe(self) -> None:
        """As ``detach``, from any thread. On the loop's own thread at once, from others as soon as the loop runs it. Never waits."""
        loop = self._loop()
        try:
            is_own = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_own = False
        if is_own:
            self.detach()
        elif loop is not None:
            # A closed loop runs no callbacks.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self.detach)

    def _on_readable(self) -> None:
        for batch, error, answers in self.native.poll():
            future = self._waiting.pop(batch, None)
            if future is not None and not future.done():
                future.set_result((error, answers))
