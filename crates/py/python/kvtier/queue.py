"""Batches that are submitted without waiting, over memory that is registered once."""

import asyncio
import select
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Optional

from . import _log, _native, errors, keys as _keys
from ._shapes import Shape
from ._status import WithStatus
from .keys import AnyKey

Region = _native.Region
# A range of a region, a buffer, or a tuple of these that together hold the chunk.
Memory = Any
# The longest single wait for the descriptor, in seconds.
WAIT_MAX = 0.1


@dataclass(frozen=True)
class Completion:
    """A batch that ended.

    ``results`` has one entry per key, ``None`` for a miss or a failure. Otherwise it is the length in bytes for a load or a lookup, 1 for a save
    that wrote the chunk, 0 for a save of a chunk that existed already, and 1 for a remove. ``error`` is the first error of the batch; a miss is no
    error.
    """

    batch: int
    results: list[Optional[int]]
    error: Optional[errors.Error] = None

    @property
    def ok(self) -> bool:
        """Whether every key has a result."""
        return None not in self.results


class Queue(WithStatus):
    """Open tiers, the fastest first, for programs that submit batches and collect their ends: an inference engine, or an adapter for one.

    ``save``, ``load``, ``lookup`` and ``remove`` start a batch and return its number at once. The end of each batch is collected exactly once: by
    ``poll``, ``wait`` or ``drain``, or in an event loop by ``completed``. ``event_fd`` is readable while ``poll`` may return something, for
    ``select``, ``epoll`` or an event loop of another kind.

    Memory is a range of a region (``region[begin:end]`` or ``region.rows(...)``), any object with a contiguous buffer, or a tuple of these that
    together hold the chunk. Register large memory once with ``register``: its pages are then pinned once, and ranges cost no Python object with a
    buffer. Until its batch has ended, memory that is saved must not be written, and memory that is loaded must not be accessed. A batch ends at the
    latest after ``timeout_seconds``, or once no medium uses its memory any more if that is later.

    ``tiers``, ``config`` and ``metrics`` are those of ``Store``. Any thread may call any method.
    """

    def __init__(
        self,
        *,
        tiers: Optional[Sequence[dict[str, Any]]] = None,
        config: Optional[str] = None,
        timeout_seconds: float = 30.0,
        metrics: Optional[str] = None,
    ) -> None:
        source = {"tiers": tiers, "config": config}
        self._tiers = _native.Tiers(source, partial=True, timeout_seconds=timeout_seconds, metrics=metrics)
        self._native = self._tiers.queue()
        self._is_engine = self._tiers.takes_engine_keys
        # One thread may enter twice: a signal handler, and the `__del__` of memory that is released, may call any method while another one runs
        # in their thread. So each step below leaves a state that such a call can use, and changes a dictionary only by one operation at a time.
        self._lock = threading.RLock()
        # Ends that were taken from the native queue. That of a batch in `_awaited` waits here for its caller alone.
        self._ended: dict[int, Completion] = {}
        self._awaited: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = {}
        self._regions: list[Region] = []
        _log.opened(self)

    def register(self, buffer: Any) -> Region:
        """Registers the memory of a writable contiguous buffer with the I/O engines. It stays exported, and so mapped, until ``close`` or until the
        region's ``release``."""
        region = Region(buffer)
        for outcome in self._tiers.register(region.address, len(region)):
            _log.logger.info("registered memory: %s", outcome)
        self._regions.append(region)
        return region

    def save(self, keys: Sequence[AnyKey], memory: Sequence[Memory], *, shape: Optional[Shape] = None) -> int:
        """Starts to save each chunk under its key."""
        return self._native.save(self._names(keys), list(memory), shape)

    def load(self, keys: Sequence[AnyKey], memory: Sequence[Memory], *, prefetch: bool = False) -> int:
        """Starts to load each chunk into its memory, which may be longer; with ``prefetch``, at a lower priority."""
        return self._native.load(self._names(keys), list(memory), exact=False, prefetch=prefetch)

    def lookup(self, keys: Sequence[AnyKey], *, prefix: bool = False) -> int:
        """Starts to look the keys up. With ``prefix``, stops at the first miss."""
        return self._native.lookup(self._names(keys), prefix=prefix)

    def remove(self, keys: Sequence[AnyKey]) -> int:
        """Starts to remove chunks. A chunk that is held has no result."""
        return self._native.remove(self._names(keys))

    @property
    def event_fd(self) -> int:
        """A descriptor that is readable while ``poll`` may return something. Do not read it or close it."""
        return self._native.event_fd

    @property
    def pending(self) -> int:
        """The number of batches whose end was not collected."""
        with self._lock:
            return self._native.pending + len(self._unclaimed())

    def poll(self) -> list[Completion]:
        """The batches that ended since the last call, in the order of their ends. Never waits."""
        with self._lock:
            self._collect()
            ends = [self._ended.pop(batch, None) for batch in self._unclaimed()]
        # A call that interrupted this one may have taken some of them.
        return [end for end in ends if end is not None]

    def wait(self, timeout: Optional[float] = None) -> list[Completion]:
        """As ``poll``, but waits until a batch ended, or for ``timeout`` seconds. Returns at once if no batch is pending."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            ended = self.poll()
            left = None if deadline is None else deadline - time.monotonic()
            if ended or not self._native.pending or (left is not None and left <= 0):
                return ended
            self._wait_readable(self._native.event_fd, left)

    def drain(self, timeout: Optional[float] = None) -> list[Completion]:
        """Waits until no batch is pending, or for ``timeout`` seconds, and returns all ends. Afterwards ``pending`` is 0 unless time was up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        ended = self.poll()
        while self._native.pending:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            self._wait_readable(self._native.event_fd, left)
            ended += self.poll()
        return ended

    async def completed(self, batch: int) -> Completion:
        """Waits in the running event loop for the end of one batch, and collects it. Cancelling the caller does not cancel the batch, which uses its
        memory until ``pending`` no longer counts it; its end is then returned by ``poll``.

        :raises ValueError: for a batch that was collected, that another caller waits for, or that does not exist.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if self._awaited.setdefault(batch, (loop, future))[1] is not future:
            raise _not_to_come(batch)
        # From here on `poll` leaves the end to this caller.
        try:
            # Replaces the former callback of this loop, if any.
            loop.add_reader(self._native.event_fd, self._on_readable)
            with self._lock:
                self._collect()
                # Asked before the ends are: one that comes in between is found there.
                is_pending = self._native.is_pending(batch)
                ended = self._ended.pop(batch, None)
            if ended is None and not is_pending:
                raise _not_to_come(batch)
            if ended is None:
                await future
                ended = self._ended.pop(batch)
            return ended
        finally:
            # If the caller was cancelled, the end is there for the next one.
            self._stop_awaiting(batch, loop)

    def close(self) -> None:
        """Rejects new batches, waits until all have ended, and releases the registered memory. Their ends can still be polled."""
        self._tiers.close()
        with self._lock:
            self._collect()
            for region in self._regions:
                region.release()
            self._regions.clear()

    def __enter__(self) -> "Queue":
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], at: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvtier.Queue over {self._tiers.name!r}>"

    def _names(self, keys: Sequence[AnyKey]) -> list[str]:
        return _keys.texts(keys, self._is_engine)

    def _unclaimed(self) -> list[int]:
        """The batches that ended and that no caller of ``completed`` waits for, in the order of their ends."""
        return [batch for batch in list(self._ended) if batch not in self._awaited]

    def _collect(self) -> None:
        """Takes the ends from the native queue. The caller holds the lock."""
        for batch, error, answers in self._native.poll():
            results = [answer if answer >= 0 else None for answer in answers]
            self._ended[batch] = Completion(batch, results, errors.from_batch(error) if error is not None else None)
            awaited = self._awaited.get(batch)
            if awaited is not None:
                self._wake(batch, *awaited)

    def _on_readable(self) -> None:
        with self._lock:
            self._collect()

    def _stop_awaiting(self, batch: int, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._awaited.pop(batch, None)
            if not any(other is loop for other, _ in list(self._awaited.values())):
                loop.remove_reader(self._native.event_fd)

    def _wake(self, batch: int, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[None]") -> None:
        """Wakes the caller that waits for the end of a batch, on its own loop."""

        def wake() -> None:
            # A caller that was cancelled leaves the end to others.
            if not future.done():
                future.set_result(None)

        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:
            # The loop was closed, so its caller never goes on: `poll` returns the end.
            self._awaited.pop(batch, None)

    @staticmethod
    def _wait_readable(fd: int, seconds: Optional[float]) -> None:
        """Waits until the descriptor is readable. Another thread may collect what makes it so, so a wait is short."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(1000 * (WAIT_MAX if seconds is None else min(seconds, WAIT_MAX)))


def _not_to_come(batch: int) -> ValueError:
    return ValueError(f"batch {batch} is not pending, or another caller waits for it: each end is collected once")
