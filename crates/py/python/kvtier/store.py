"""Tiers for Python programs."""

import asyncio
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Optional, Union

from . import _gpu_tensor, _native, errors, keys as _keys
from ._aio import AsyncQueue, BatchResult
from ._shapes import Group, Shape, by_shape
from ._status import WithStatus
from .keys import AnyKey, EngineKey, Key


# Keys per page of a listing.
PAGE = 1000

# Inside the class, `list` is a method of the store.
Lengths = list[Optional[int]]
Flags = list[bool]
Names = list[str]


@dataclass(frozen=True)
class _Batch:
    """Chunks of one shape, with their names and buffers."""

    group: Group
    names: Names
    memory: list[Any]


Batches = list[_Batch]


class Store(WithStatus):
    """Open tiers, the fastest first, used as one.

    Every call takes a batch: keys, and a buffer for each. A buffer is an object with Python's buffer protocol, a NumPy array or a torch tensor.
    Over a tier of type ``gds`` it may be GPU memory: a torch tensor, or an object with ``__cuda_array_interface__`` or DLPack. Until the call has
    returned, a buffer that is saved must not be written and one that is loaded must not be accessed. Concurrent loads need separate buffers. An
    error of one chunk raises after all others have ended.

    A call returns only when no medium uses the buffers any more, also after a timeout, a cancellation or a signal. If a medium hangs, that is up
    to ten minutes after ``timeout_seconds``. A second signal is raised at once; the buffers must then not be used again.

    ``tiers`` is a list of specs; ``config`` is the path of a file: kvtier's own, LMCache's YAML, or objects for ``--l2-adapter``. Tiers with a
    layout of LMCache's in-process mode, as those of ``remote_url`` and ``gds_path``, take ``EngineKey``, others ``Key``; or the text of either.

    Files of ``gds_path`` state the shape of their tensor. It is ``kvtier.gds_shape`` of the file, or the ``shape`` of a save, such as
    ``"2x32x256x1024"`` or a ``Shape``. Without both it is the shape of the buffer, if that has four axes (keys and values or latents, layers,
    tokens, elements), else that of the existing files. Without any of these, chunks are saved as bytes (``BINARY``), which stores load and LMCache
    refuses.

    ``metrics`` is the address of a Prometheus endpoint, such as ``127.0.0.1:9464``, served until the store is closed; port 0 selects a free one.
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
        self._is_engine = self._tiers.takes_engine_keys
        self._queues: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncQueue]" = weakref.WeakKeyDictionary()

    def save(self, keys: Sequence[AnyKey], buffers: Sequence[Any], *, shape: Union[Shape, str, None] = None) -> Flags:
        """Saves each buffer under its key. Returns for each whether it was written; ``False`` means that the chunk existed already. ``shape`` is
        the shape of each buffer, for layouts that store it."""
        batches = self._batches(keys, buffers, shape)
        return _merged(batches, [self._tiers.save(batch.names, batch.memory, batch.group.shape) for batch in batches])

    def load(self, keys: Sequence[AnyKey], buffers: Sequence[Any]) -> Lengths:
        """Loads each chunk into its buffer, which may be longer. Returns the chunk's length in bytes, or ``None`` for a miss. A buffer that is
        shorter than its chunk is an error."""
        return _lengths(self._tiers.load(self._names(keys), _bytes(buffers), exact=False))

    def lookup(self, keys: Sequence[AnyKey], *, prefix: bool = False) -> Lengths:
        """Returns the length in bytes of each stored chunk, or ``None``. With ``prefix``, stops at the first miss. A key for which the medium
        gives no answer is an error; if there are several tiers, only if all of them fail."""
        return _lengths(self._tiers.lookup(self._names(keys), prefix=prefix))

    def remove(self, keys: Sequence[AnyKey]) -> Flags:
        """Removes chunks. ``False`` is a chunk that is held."""
        return [answer is not None for answer in _lengths(self._tiers.remove(self._names(keys)))]

    async def asave(
        self, keys: Sequence[AnyKey], buffers: Sequence[Any], *, shape: Union[Shape, str, None] = None
    ) -> Flags:
        """As ``save``."""
        queue = self._async_queue()
        batches = self._batches(keys, buffers, shape)
        submitted = [queue.native.save(batch.names, batch.memory, batch.group.shape) for batch in batches]
        return _merged(batches, await queue.shielded_all(submitted))

    async def aload(self, keys: Sequence[AnyKey], buffers: Sequence[Any], *, prefetch: bool = False) -> Lengths:
        """As ``load``; with ``prefetch``, at a lower priority."""
        queue = self._async_queue()
        batch = queue.native.load(self._names(keys), _bytes(buffers), exact=False, prefetch=prefetch)
        return _lengths(await queue.shielded(batch))

    async def alookup(self, keys: Sequence[AnyKey], *, prefix: bool = False) -> Lengths:
        """As ``lookup``."""
        queue = self._async_queue()
        return _lengths(await queue.completion(queue.native.lookup(self._names(keys), prefix=prefix)))

    async def aremove(self, keys: Sequence[AnyKey]) -> Flags:
        """As ``remove``."""
        queue = self._async_queue()
        return [answer is not None for answer in _lengths(await queue.completion(queue.native.remove(self._names(keys))))]

    def list(self, *, model: Optional[str] = None) -> Iterator[tuple[AnyKey, int]]:
        """Lists the chunks of the slowest tier, which every save reaches: each key and its length in bytes, in no order.

        The listing is read page by page; a chunk that is removed meanwhile may be missing. The layout ``kvtier`` stores only digests of salts, so
        chunks with a salt are omitted. A name on the medium that is no key is returned as a text."""
        try:
            listing = self._tiers.listing()
        except NotImplementedError as e:
            raise errors.Unsupported(str(e)) from None
        return _listed(listing, self._is_engine, model)

    def close(self) -> None:
        """Rejects new work and waits until all submitted work has ended."""
        self._tiers.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], at: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvtier.Store over {self._tiers.name!r}>"

    def _names(self, keys: Sequence[AnyKey]) -> Names:
        return _keys.texts(keys, self._is_engine)

    def _batches(self, keys: Sequence[AnyKey], buffers: Sequence[Any], shape: Union[Shape, str, None]) -> Batches:
        """One batch per shape."""
        names, memory = self._names(keys), _bytes(buffers)
        if len(names) != len(memory):
            return [_Batch(Group(None, []), names, memory)]
        groups = by_shape(buffers, shape, self._tiers.shapes)
        if len(groups) == 1:
            return [_Batch(groups[0], names, memory)]
        return [_Batch(group, [names[at] for at in group.at], [memory[at] for at in group.at]) for group in groups]

    def _async_queue(self) -> AsyncQueue:
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            # Futures of a closed loop, still waiting in its queue, would keep the loop alive.
            for closed in [other for other in self._queues if other.is_closed()]:
                del self._queues[closed]
            queue = self._queues[loop] = AsyncQueue(self._tiers.queue(), loop)
        return queue


def _listed(listing: _native.Listing, is_engine: bool, model: Optional[str]) -> Iterator[tuple[AnyKey, int]]:
    while page := listing.page(PAGE):
        for name, length in page:
            if model is None or name.partition("@")[0] == model:
                yield _keys.listed(name, is_engine), length


def _bytes(buffers: Sequence[Any]) -> list[Any]:
    """Replaces torch tensors, which have no buffer protocol, by NumPy arrays over the same memory."""
    if isinstance(buffers, (bytes, bytearray, memoryview)):
        raise TypeError(f"buffers are a list, one a key, not one {type(buffers).__name__}: write [buffer]")
    return [buffer if not hasattr(buffer, "data_ptr") else _of_tensor(buffer) for buffer in buffers]


def _of_tensor(tensor: Any) -> Any:
    if tensor.device.type not in ("cpu", "cuda"):
        raise errors.Invalid(f"a tensor on {tensor.device}: copy it to host memory first")
    if not tensor.is_contiguous():
        raise errors.Invalid("a tensor that is not contiguous; pass one that is")
    if tensor.device.type == "cuda":
        return _gpu_tensor.Tensor(tensor)
    import torch

    return tensor.detach().view(-1).view(torch.uint8).numpy()


def _merged(batches: Batches, results: Sequence[BatchResult]) -> Flags:
    """Which chunks of all batches were written, in the order of their buffers."""
    for error, _ in results:
        errors.check(error)
    written = {at: answer == 1 for batch, (_, answers) in zip(batches, results) for at, answer in zip(batch.group.at, answers)}
    return [written[at] for at in sorted(written)]


def _lengths(result: BatchResult) -> Lengths:
    error, answers = result
    errors.check(error)
    return [answer if answer >= 0 else None for answer in answers]
