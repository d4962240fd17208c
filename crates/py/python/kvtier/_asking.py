"""Batches that an event loop waits for."""

import asyncio
import contextlib
import weakref
from collections.abc import Sequence
from typing import Optional

from . import _native

Ended = tuple[Optional[tuple[str, str]], list[int]]


class Asking:
    """A queue whose ends wake futures of one event loop. Its methods belong to that loop's thread."""

    def __init__(self, queue: _native.Queue, loop: asyncio.AbstractEventLoop) -> None:
        self.queue = queue
        # The loop has us, and a store has us by the loop: it would never go if we had it too.
        self._loop = weakref.ref(loop)
        self._waiting: dict[int, asyncio.Future[Ended]] = {}
        loop.add_reader(queue.fd, self._arrived)

    def future(self, batch: int) -> "asyncio.Future[Ended]":
        """Resolves when the batch of this number has ended. What was cancelled goes on below and keeps its memory till its end."""
        waiting: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._waiting[batch] = waiting
        return waiting

    async def home(self, batch: int) -> Ended:
        """The same for who takes the batch's memory for his own as soon as he waits no more: when cancelled, he does so after its end."""
        waiting = self.future(batch)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            while not waiting.done():
                try:
                    await asyncio.wait([waiting])
                except asyncio.CancelledError:
                    continue
            raise

    async def all_home(self, batches: Sequence[int]) -> list[Ended]:
        """The same for several batches, at least one. Not by tasks: one that is cancelled before it starts would not wait."""
        if len(batches) == 1:
            return [await self.home(batches[0])]
        waiting, cancelled = [self.future(batch) for batch in batches], None
        while not all(one.done() for one in waiting):
            try:
                await asyncio.wait(waiting)
            except asyncio.CancelledError as e:
                cancelled = e
        if cancelled is not None:
            raise cancelled
        return [one.result() for one in waiting]

    def stop(self) -> None:
        """Listens no more. Only for closed tiers, where all that waits has ended."""
        self._arrived()
        loop = self._loop()
        if loop is not None:
            loop.remove_reader(self.queue.fd)
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()

    def stop_soon(self) -> None:
        """The same from any thread: on the loop's own at once, from others as soon as the loop runs it. Never waits."""
        loop = self._loop()
        try:
            is_own = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_own = False
        if is_own:
            self.stop()
        elif loop is not None:
            # A loop that was closed runs nothing any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self.stop)

    def _arrived(self) -> None:
        for batch, fault, answers in self.queue.drain():
            waiting = self._waiting.pop(batch, None)
            if waiting is not None and not waiting.done():
                waiting.set_result((fault, answers))
