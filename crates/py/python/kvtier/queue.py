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
        self._lock = threading.Lock()
        # Batches whose ends were not taken from the native queue.
        self._running: set[int] = set()
        self._ended: dict[int, Completion] = {}
        self._awaited: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Completion]]] = {}
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
        names = self._names(keys)
        with self._lock:
            return self._started(self._native.save(names, list(memory), shape))

    def load(self, keys: Sequence[AnyKey], memory: Sequence[Memory], *, prefetch: bool = False) -> int:
        """Starts to load each chunk into its memory, which may be longer; with ``prefetch``, at a lower priority."""
        names = self._names(keys)
        with self._lock:
            return self._started(self._native.load(names, list(memory), exact=False, prefetch=prefetch))

    def lookup(self, keys: Sequence[AnyKey], *, prefix: bool = False) -> int:
        """Starts to look the keys up. With ``prefix``, stops at the first miss."""
        names = self._names(keys)
        with self._lock:
            return self._started(self._native.lookup(names, prefix=prefix))

    def remove(self, keys: Sequence[AnyKey]) -> int:
        """Starts to remove chunks. A chunk that is held has no result."""
        names = self._names(keys)
        with self._lock:
            return self._started(self._native.remove(names))

    @property
    def event_fd(self) -> int:
        """A descriptor that is readable while ``poll`` may return something. Do not read it or close it."""
        return self._native.event_fd

    @property
    def pending(self) -> int:
        """The number of batches whose end was not collected."""
        with self._lock:
            return self._native.pending + len(self._ended)

    def poll(self) -> list[Completion]:
        """The batches that ended since the last call, in the order of their ends. Never waits."""
        with self._lock:
            self._collect()
            ended = list(self._ended.values())
            self._ended.clear()
        return ended

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
        future: asyncio.Future[Completion] = loop.create_future()
        with self._lock:
            self._collect()
            ended = self._ended.pop(batch, None)
            if ended is not None:
                return ended
            if batch not in self._running or batch in self._awaited:
                raise ValueError(f"batch {batch} is not pending, or another caller waits for it: each end is collected once")
            self._awaited[batch] = (loop, future)
            # Replaces the former callback of this loop, if any.
            loop.add_reader(self._native.event_fd, self._on_readable)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                with self._lock:
                    self._ended[batch] = future.result()
            raise
        finally:
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

    def _started(self, batch: int) -> int:
        """Notes a batch. The caller holds the lock, so that its end is not collected before."""
        self._running.add(batch)
        return batch

    def _names(self, keys: Sequence[AnyKey]) -> list[str]:
        return _keys.texts(keys, self._is_engine)

    def _collect(self) -> None:
        """Takes the ends from the native queue. The caller holds the lock."""
        for batch, error, answers in self._native.poll():
            self._running.discard(batch)
            results = [answer if answer >= 0 else None for answer in answers]
            completion = Completion(batch, results, errors.from_batch(error) if error is not None else None)
            awaited = self._awaited.pop(batch, None)
            if awaited is None:
                self._ended[batch] = completion
            else:
                self._resolve(*awaited, completion)

    def _on_readable(self) -> None:
        with self._lock:
            self._collect()

    def _stop_awaiting(self, batch: int, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._awaited.pop(batch, None)
            if not any(other is loop for other, _ in self._awaited.values()):
                loop.remove_reader(self._native.event_fd)

    def _resolve(self, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Completion]", completion: Completion) -> None:
        """Resolves the future of a caller on its own loop. If the caller was cancelled meanwhile, ``poll`` returns the end."""

        def resolve() -> None:
            if not future.done():
                future.set_result(completion)
                return
            with self._lock:
                self._ended[completion.batch] = completion

        try:
            loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            # The loop was closed.
            self._ended[completion.batch] = completion

    @staticmethod
    def _wait_readable(fd: int, seconds: Optional[float]) -> None:
        """Waits until the descriptor is readable. Another thread may collect what makes it so, so a wait is short."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(1000 * (WAIT_MAX if seconds is None else min(seconds, WAIT_MAX)))
