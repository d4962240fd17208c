"""Tiers for Python programs."""

import asyncio
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Optional, Union

from . import _cuda, _native, errors, keys as _keys
from ._asking import Asking, Ended
from ._shapes import Group, Shape, by_shape
from .keys import AnyKey, EngineKey, Key


@dataclass(frozen=True)
class Usage:
    """How full a store is. ``None`` is what nobody knows, or a cap that there is not."""

    used_bytes: Optional[int]
    capacity_bytes: Optional[int]
    chunks: int
    bytes_by_salt: dict[str, int]


@dataclass(frozen=True)
class TierStatus:
    """One tier of a store: whether it works, what it counted, and how full it is, ``None`` where nobody knows or there is no cap."""

    name: str
    healthy: bool
    reasons: list[str]
    counters: dict[str, int]
    used_bytes: Optional[int]
    capacity_bytes: Optional[int]
    chunks: int


@dataclass(frozen=True)
class Status:
    """Whether a store works, what an operator should know, and the same of each tier, the fastest first."""

    healthy: bool
    reasons: list[str]
    counters: dict[str, int]
    tiers: list[TierStatus]


# Keys that are read at once where all are listed.
PAGE = 1000

# A method of the store is called `list`: inside its class the word means that.
Found = list[Optional[int]]
Flags = list[bool]
Names = list[str]


@dataclass(frozen=True)
class _Batch:
    """Chunks of one shape, with their names and their memory."""

    group: Group
    names: Names
    memory: list[Any]


Batches = list[_Batch]


class Store:
    """Tiers that are open, the fastest first, as one.

    Every call takes a batch: keys, and a buffer for each, which is anything with Python's buffer protocol, a NumPy array or a torch tensor, or,
    over a tier of type ``gds``, memory of a GPU: a torch tensor there, and whatever has ``__cuda_array_interface__`` or speaks DLPack. Nothing
    is copied that needs not be. A buffer that is being saved must not be written, one that is being loaded not be touched, before the call
    has returned; two loads under way at once need two buffers. What ends in an error for one chunk raises after all others have ended.

    A call returns when the buffers are the caller's again, also where it took too long, was cancelled, or a signal came: if a medium hangs
    with a buffer, that is up to ten minutes later than ``timeout_seconds``. A second signal is raised at once, and the buffers are then not to be used again.

    ``tiers`` is a list of specs; ``config`` is the path of a file: ours, LMCache's YAML, or objects as ``--l2-adapter`` takes them. Where its tiers
    have the layout of LMCache's in-process mode, as those of ``remote_url`` and ``gds_path``, keys are ``EngineKey``, else ``Key``; or the text of either.

    Files of ``gds_path`` state the shape of their tensor. It is that of ``kvtier.gds_shape`` in the file, or the ``shape`` of a save, such as
    ``"2x32x256x1024"`` or a ``Shape``; without both it is that of the buffer, where that is an array or tensor of four axes (keys and values or
    latents, layers, tokens, elements), else that of files that are there. Where none says it, chunks are saved as bytes (``BINARY``), which
    stores load as they are, and LMCache refuses.

    At ``metrics``, an address such as ``127.0.0.1:9464``, Prometheus finds the tiers' numbers until the store is closed; port 0 is any that is free.
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
        self._asking: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Asking]" = weakref.WeakKeyDictionary()

    def save(self, keys: Sequence[AnyKey], buffers: Sequence[Any], *, shape: Union[Shape, str, None] = None) -> Flags:
        """Saves each buffer under its key. Answers what was written, ``False`` being what was there already. ``shape`` is the tensor that each
        buffer is, for layouts that keep it."""
        batches = self._batches(keys, buffers, shape)
        return _merged(batches, [self._tiers.save(batch.names, batch.memory, batch.group.shape) for batch in batches])

    def load(self, keys: Sequence[AnyKey], buffers: Sequence[Any]) -> Found:
        """Loads each chunk into its buffer, which may be longer. Answers the chunk's length in bytes, or ``None`` for a miss. A buffer that is
        shorter than its chunk is an error."""
        return _found(self._tiers.load(self._names(keys), _bytes(buffers), exact=False))

    def lookup(self, keys: Sequence[AnyKey], *, prefix: bool = False) -> Found:
        """Answers the length in bytes of each chunk that is there, or ``None``. With ``prefix``, nothing is asked behind the first miss."""
        return _found(self._tiers.lookup(self._names(keys), prefix=prefix))

    def remove(self, keys: Sequence[AnyKey]) -> Flags:
        """Removes chunks. ``False`` is one that somebody holds."""
        return [answer is not None for answer in _found(self._tiers.remove(self._names(keys)))]

    async def asave(
        self, keys: Sequence[AnyKey], buffers: Sequence[Any], *, shape: Union[Shape, str, None] = None
    ) -> Flags:
        """As ``save``."""
        ask, batches = self._ask(), self._batches(keys, buffers, shape)
        submitted = [ask.queue.save(batch.names, batch.memory, batch.group.shape) for batch in batches]
        return _merged(batches, await ask.all_home(submitted))

    async def aload(self, keys: Sequence[AnyKey], buffers: Sequence[Any], *, prefetch: bool = False) -> Found:
        """As ``load``; with ``prefetch``, after those for whom somebody waits now."""
        ask = self._ask()
        return _found(await ask.home(ask.queue.load(self._names(keys), _bytes(buffers), exact=False, prefetch=prefetch)))

    async def alookup(self, keys: Sequence[AnyKey], *, prefix: bool = False) -> Found:
        """As ``lookup``."""
        ask = self._ask()
        return _found(await ask.future(ask.queue.lookup(self._names(keys), prefix=prefix)))

    async def aremove(self, keys: Sequence[AnyKey]) -> Flags:
        """As ``remove``."""
        ask = self._ask()
        return [answer is not None for answer in _found(await ask.future(ask.queue.remove(self._names(keys))))]

    def usage(self) -> Usage:
        """How full it is, whoever wrote it."""
        used, capacity, chunks, tenants = self._tiers.usage()
        return Usage(used, capacity, chunks, {salt: there for salt, there, _ in tenants if there > 0})

    def status(self) -> Status:
        """Whether it works."""
        healthy, reasons, counters = self._tiers.status()
        tiers = [TierStatus(**{**tier, "counters": dict(tier["counters"])}) for tier in self._tiers.tier_status()]
        return Status(healthy, reasons, dict(counters), tiers)

    @property
    def metrics_address(self) -> Optional[str]:
        """Where its metrics are served, as ``HOST:PORT``; ``None`` where they are not."""
        return self._tiers.metrics_address

    def list(self, *, model: Optional[str] = None) -> Iterator[tuple[AnyKey, int]]:
        """The chunks that the slowest tier has, which all saves reach, whoever saved them: each key and its length in bytes, in no order. Read
        page by page; what goes meanwhile may be missing. In the layout ``kvtier`` salts are kept as digests only, and chunks with one left out.
        A name on the medium that no key spells is its text."""
        try:
            listing = self._tiers.listing()
        except NotImplementedError as e:
            raise errors.Unsupported(str(e)) from None
        return _listed(listing, self._is_engine, model)

    def close(self) -> None:
        """Takes no more work, and waits until all that was taken has ended."""
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
        if isinstance(keys, (str, bytes, Key, EngineKey)):
            raise TypeError(f"keys are a list, not one {type(keys).__name__}: write [key]")
        return [_keys.text(key, self._is_engine) for key in keys]

    def _batches(self, keys: Sequence[AnyKey], buffers: Sequence[Any], shape: Union[Shape, str, None]) -> Batches:
        """One for the chunks of each shape."""
        names, memory = self._names(keys), _bytes(buffers)
        if len(names) != len(memory):
            return [_Batch(Group(None, []), names, memory)]
        groups = by_shape(buffers, shape, self._tiers.shapes)
        if len(groups) == 1:
            return [_Batch(groups[0], names, memory)]
        return [_Batch(group, [names[at] for at in group.at], [memory[at] for at in group.at]) for group in groups]

    def _ask(self) -> Asking:
        loop = asyncio.get_running_loop()
        asking = self._asking.get(loop)
        if asking is None:
            # What still waits for a loop that was closed would keep it.
            for gone in [other for other in self._asking if other.is_closed()]:
                del self._asking[gone]
            asking = self._asking[loop] = Asking(self._tiers.queue(), loop)
        return asking


def _listed(listing: _native.Listing, is_engine: bool, model: Optional[str]) -> Iterator[tuple[AnyKey, int]]:
    while page := listing.page(PAGE):
        for name, length in page:
            if model is None or name.partition("@")[0] == model:
                yield _keys.listed(name, is_engine), length


def _bytes(buffers: Sequence[Any]) -> list[Any]:
    """Torch tensors have no buffer protocol, but NumPy arrays over the same memory, of whatever type of element."""
    if isinstance(buffers, (bytes, bytearray, memoryview)):
        raise TypeError(f"buffers are a list, one a key, not one {type(buffers).__name__}: write [buffer]")
    return [buffer if not hasattr(buffer, "data_ptr") else _of_tensor(buffer) for buffer in buffers]


def _of_tensor(tensor: Any) -> Any:
    if tensor.device.type not in ("cpu", "cuda"):
        raise errors.Invalid(f"a tensor on {tensor.device}: copy it to host memory first")
    if not tensor.is_contiguous():
        raise errors.Invalid("a tensor that is not contiguous; pass one that is")
    if tensor.device.type == "cuda":
        return _cuda.Tensor(tensor)
    import torch

    return tensor.detach().view(-1).view(torch.uint8).numpy()


def _merged(batches: Batches, ends: Sequence[Ended]) -> Flags:
    """What was written of all batches, in the order of their buffers."""
    for fault, _ in ends:
        errors.check(fault)
    written = {at: answer == 1 for batch, (_, answers) in zip(batches, ends) for at, answer in zip(batch.group.at, answers)}
    return [written[at] for at in sorted(written)]


def _found(ended: Ended) -> Found:
    fault, answers = ended
    errors.check(fault)
    return [answer if answer >= 0 else None for answer in answers]
