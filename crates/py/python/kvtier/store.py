"""Tiers for Python programs."""

import asyncio
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Optional, Union

from . import _cuda, _native, errors
from ._asking import Asking, Ended


@dataclass(frozen=True)
class Key:
    """Names a chunk: whose model, which rank and object group of it, and the hash of all tokens up to the chunk's end.

    Two salts never see each other's chunks.
    """

    model: str
    hash: bytes
    rank: int = 0
    group: int = 0
    salt: str = ""

    def __str__(self) -> str:
        name = f"{self.model}@{self.rank:08x}@{self.group:x}@{self.hash.hex()}"
        return f"{name}@{self.salt}" if self.salt else name


@dataclass(frozen=True)
class Usage:
    """How full a store is. ``None`` is what nobody knows, or a cap that there is not."""

    used_bytes: Optional[int]
    capacity_bytes: Optional[int]
    chunks: int
    bytes_by_salt: dict[str, int]


@dataclass(frozen=True)
class Status:
    """Whether a store works, and what an operator should know."""

    healthy: bool
    reasons: list[str]
    counters: dict[str, int]


AnyKey = Union[Key, str]
Found = list[Optional[int]]


class Store:
    """Tiers that are open, the fastest first, as one.

    Every call takes a batch: keys, and a buffer for each, which is anything with Python's buffer protocol, a NumPy array or a torch tensor, or,
    over a tier of type ``gds``, memory of a GPU: a torch tensor there, and whatever has ``__cuda_array_interface__`` or speaks DLPack. Nothing
    is copied that needs not be. A buffer that is being saved must not be written, one that is being loaded not be touched, before the call
    has returned; two loads under way at once need two buffers. What ends in an error for one chunk raises after all others have ended.

    A call returns when the buffers are the caller's again, also where it took too long, was cancelled, or a signal came: if a medium hangs
    with a buffer, that is up to ten minutes later than ``timeout_seconds``. A second signal is raised at once, and the buffers are then not to be used again.
    """

    def __init__(
        self,
        *,
        tiers: Optional[Sequence[dict[str, Any]]] = None,
        config: Optional[str] = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        self._tiers = _native.Tiers({"tiers": tiers, "config": config}, partial=True, timeout_seconds=timeout_seconds)
        self._asking: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Asking]" = weakref.WeakKeyDictionary()

    def save(self, keys: Sequence[AnyKey], buffers: Sequence[Any]) -> list[bool]:
        """Saves each buffer under its key. Answers what was written, ``False`` being what was there already."""
        return _written(self._tiers.save(_names(keys), _bytes(buffers)))

    def load(self, keys: Sequence[AnyKey], buffers: Sequence[Any]) -> Found:
        """Loads each chunk into its buffer, which may be longer. Answers the chunk's length in bytes, or ``None`` for a miss."""
        return _found(self._tiers.load(_names(keys), _bytes(buffers), exact=False))

    def lookup(self, keys: Sequence[AnyKey], *, prefix: bool = False) -> Found:
        """Answers the length in bytes of each chunk that is there, or ``None``. With ``prefix``, nothing is asked behind the first miss."""
        return _found(self._tiers.lookup(_names(keys), prefix=prefix))

    def remove(self, keys: Sequence[AnyKey]) -> list[bool]:
        """Removes chunks. ``False`` is one that somebody holds."""
        return [answer is not None for answer in _found(self._tiers.remove(_names(keys)))]

    async def asave(self, keys: Sequence[AnyKey], buffers: Sequence[Any]) -> list[bool]:
        """As ``save``."""
        ask = self._ask()
        return _written(await ask.home(ask.queue.save(_names(keys), _bytes(buffers))))

    async def aload(self, keys: Sequence[AnyKey], buffers: Sequence[Any], *, prefetch: bool = False) -> Found:
        """As ``load``; with ``prefetch``, after those for whom somebody waits now."""
        ask = self._ask()
        return _found(await ask.home(ask.queue.load(_names(keys), _bytes(buffers), exact=False, prefetch=prefetch)))

    async def alookup(self, keys: Sequence[AnyKey], *, prefix: bool = False) -> Found:
        """As ``lookup``."""
        ask = self._ask()
        return _found(await ask.future(ask.queue.lookup(_names(keys), prefix=prefix)))

    async def aremove(self, keys: Sequence[AnyKey]) -> list[bool]:
        """As ``remove``."""
        ask = self._ask()
        return [answer is not None for answer in _found(await ask.future(ask.queue.remove(_names(keys))))]

    def usage(self) -> Usage:
        """How full it is, whoever wrote it."""
        used, capacity, chunks, tenants = self._tiers.usage()
        return Usage(used, capacity, chunks, {salt: there for salt, there, _ in tenants if there > 0})

    def status(self) -> Status:
        """Whether it works."""
        healthy, reasons, counters = self._tiers.status()
        return Status(healthy, reasons, dict(counters))

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

    def _ask(self) -> Asking:
        loop = asyncio.get_running_loop()
        asking = self._asking.get(loop)
        if asking is None:
            # What still waits for a loop that was closed would keep it.
            for gone in [other for other in self._asking if other.is_closed()]:
                del self._asking[gone]
            asking = self._asking[loop] = Asking(self._tiers.queue(), loop)
        return asking


def _names(keys: Sequence[AnyKey]) -> list[str]:
    return [str(key) for key in keys]


def _bytes(buffers: Sequence[Any]) -> list[Any]:
    """Torch tensors have no buffer protocol, but NumPy arrays over the same memory, of whatever type of element."""
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


def _written(ended: Ended) -> list[bool]:
    fault, answers = ended
    errors.check(fault)
    return [answer == 1 for answer in answers]


def _found(ended: Ended) -> Found:
    fault, answers = ended
    errors.check(fault)
    return [answer if answer >= 0 else None for answer in answers]
