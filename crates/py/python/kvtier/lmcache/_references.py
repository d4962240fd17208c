"""Counts references of LMCache's memory objects. An object whose reference is lost occupies LMCache's memory for ever."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Callable, Optional

from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_management import MemoryObj

MaybeObjs = list[Optional[MemoryObj]]


def release(objs: MaybeObjs) -> None:
    """Releases each object of the list once."""
    for n, obj in enumerate(objs):
        objs[n] = None
        if obj is not None:
            obj.ref_count_down()


@contextlib.contextmanager
def released_unless_done(objs: MaybeObjs) -> Iterator[None]:
    """Releases the objects of the list if the block fails or is cancelled."""
    try:
        yield
    except BaseException:
        release(objs)
        raise


async def allocated(allocate: Callable[[], MaybeObjs]) -> MaybeObjs:
    """Allocates on a thread, since the allocation may wait for memory that only the event loop releases. If the caller is cancelled meanwhile,
    the thread releases the objects."""
    lock, objs, is_cancelled = threading.Lock(), MaybeObjs(), False

    def on_thread() -> None:
        found = allocate()
        with lock:
            if not is_cancelled:
                objs.extend(found)
                return
        release(found)

    try:
        await asyncio.to_thread(on_thread)
    except BaseException:
        with lock:
            is_cancelled = True
        release(objs)
        raise
    return objs


@dataclass(frozen=True)
class Saving:
    """A save in flight."""

    key: CacheEngineKey
    obj: MemoryObj


class Saves:
    """The saves in flight, each with a reference of its object until it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[CacheEngineKey] = set()

    def __contains__(self, key: CacheEngineKey) -> bool:
        with self._lock:
            return key in self._keys

    def begin(self, keys: Sequence[CacheEngineKey], objs: Sequence[MemoryObj]) -> list[Saving]:
        """Begins the saves of keys that have none in flight, and returns them. The caller must call ``end`` for each."""
        new = []
        with self._lock:
            for key, obj in zip(keys, objs):
                if key not in self._keys:
                    self._keys.add(key)
                    obj.ref_count_up()
                    new.append(Saving(key, obj))
        return new

    def end(self, saves: Sequence[Saving]) -> None:
        """Releases the objects. Their keys can be saved again."""
        with self._lock:
            self._keys.difference_update(saving.key for saving in saves)
        for saving in saves:
            saving.obj.ref_count_down()
