"""A storage plugin of LMCache's in-process mode for memory of GPUs."""

import asyncio
import functools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Callable, Optional, Union

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_allocators.gpu_memory_allocator import GPUMemoryAllocator
from lmcache.v1.memory_management import MemoryAllocatorInterface, MemoryFormat, MemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.abstract_backend import AllocatorBackendInterface, StoragePluginInterface

from .. import _log, _native, _told, errors
from .._asking import Asking
from .._log import logger
from .._shapes import Shape
from . import _gds_settings, _hashes
from ._objects import groups, keep, memory, shape
from ._references import MaybeObjs, Saves, Saving, allocated, release, released_unless_done

_log.follow_lmcache()

Keys = list[CacheEngineKey]
Objs = list[MemoryObj]
OnSaved = Optional[Callable[[CacheEngineKey], None]]

# Direct I/O wants pages, and so does cuFile.
PAGE = 4096


class Closed:
    """In the place of tiers that were closed, which LMCache may keep for long: nothing is there, and no memory is held for it."""

    name = "closed tiers"

    def lookup(self, names: list[str], **_: Any) -> tuple[None, list[int]]:
        return None, [-1] * len(names)

    def load(self, names: list[str], _: list[Any]) -> tuple[None, list[int]]:
        return self.lookup(names)

    def remove(self, names: list[str]) -> tuple[None, list[int]]:
        return self.lookup(names)

    def release(self, names: list[str]) -> None:
        """Nothing is held."""

    def queue(self) -> _native.Queue:
        raise errors.Closed("the storage plugin is closed")

    def status(self) -> tuple[bool, list[str], list[tuple[str, int]]]:
        return False, ["closed"], []

    def close(self) -> None:
        """It is."""


class KvtierGdsBackend(StoragePluginInterface, AllocatorBackendInterface):  # type: ignore[misc]
    """Chunks in the directory of ``extra_config["storage_plugin.<name>.gds_path"]``, which is what ``gds_path`` was: LMCache's own files. Or
    in the tiers of ``storage_plugin.<name>.tiers``, which are ours.

    Memory objects on a GPU go to and from the tier where they are, by cuFile or through the tier's pinned memory; those in LMCache's pinned
    memory go by direct I/O. With ``gds_buffer_size`` loads go into that much GPU memory, as far as it is free, else into LMCache's pinned memory.
    """

    def __init__(
        self,
        config: LMCacheEngineConfig,
        metadata: LMCacheMetadata,
        local_cpu_backend: Any = None,
        loop: Optional[asyncio.AbstractEventLoop] = None,
        dst_device: str = "cuda",
    ) -> None:
        super().__init__(dst_device, config, metadata, local_cpu_backend, loop)
        name = _gds_settings.own_name(config, type(self).__name__)
        # Opened before there is GPU memory, and so also released before it.
        self._tiers: Union[_native.Tiers, Closed] = _native.Tiers(
            {"engine": _gds_settings.settings(config, name, dst_device)},
            engine_keys=True,
            partial=bool(config.save_unfull_chunk),
            load_releases=False,
            hold_seconds=float(config.pin_timeout_sec),
            timeout_seconds=float(config.blocking_timeout_secs),
            metrics=_gds_settings.metrics_address(config, name, metadata),
            needs_metrics=False,
        )
        _told.opened(self)
        _hashes.warn(config)
        self._save_from = _gds_settings.save_from(config, name)
        self._asking: Optional[Asking] = None
        self._saves = Saves()
        self._gpu = self.initialize_allocator(config, metadata)
        if self._gpu is None and local_cpu_backend is None and metadata.role != "scheduler":
            raise ValueError("no memory to load into: set max_local_cpu_size, or gds_buffer_size on a machine with a GPU")
        self._register(self._tiers)

    def initialize_allocator(
        self, config: LMCacheEngineConfig, metadata: LMCacheMetadata
    ) -> Optional[MemoryAllocatorInterface]:
        """``gds_buffer_size`` MiB on the GPU; ``None`` where loads go into LMCache's pinned memory."""
        if not config.gds_buffer_size or metadata.role == "scheduler":
            return None
        if not self.dst_device.startswith("cuda"):
            logger.warning("gds_buffer_size has no effect on %s: loads go into pinned memory", self.dst_device)
            return None
        if config.local_cpu and self.local_cpu_backend is not None:
            # What LMCache keeps there would keep the buffer full.
            logger.warning(
                "gds_buffer_size has no effect: with local_cpu: true LMCache keeps what was loaded in its cache of host memory, so loads go "
                "there; set local_cpu: false to load to the GPU"
            )
            return None
        return GPUMemoryAllocator(config.gds_buffer_size << 20, device=self.dst_device, align_bytes=PAGE)

    def contains(self, key: CacheEngineKey, pin: bool = False) -> bool:
        return self.batched_contains([key], pin) == 1

    def batched_contains(self, keys: Keys, pin: bool = False) -> int:
        """How many are there from the first on."""
        fault, lens = self._tiers.lookup(_names(keys), prefix=True, hold=pin)
        _told.fault("lookup", fault)
        return _prefix(lens)

    async def batched_async_contains(self, lookup_id: str, keys: Keys, pin: bool = False) -> int:
        ask = self._ask()
        fault, lens = await ask.future(ask.queue.lookup(_names(keys), prefix=True, hold=pin))
        _told.fault("lookup", fault)
        return _prefix(lens)

    def exists_in_put_tasks(self, key: CacheEngineKey) -> bool:
        return key in self._saves

    def batched_submit_put_task(
        self,
        keys: Sequence[CacheEngineKey],
        objs: Objs,
        transfer_spec: Any = None,
        on_complete_callback: OnSaved = None,
    ) -> Optional[list["Future[None]"]]:
        """Saves in the background. The reference of an object is released when its save has ended, also where that was cancelled or failed;
        ``on_complete_callback`` is called for each chunk that is stored. The future can be cancelled only until the saves begin."""
        new = self._saves.begin(keys, objs)
        if not new:
            return None
        ended: "Future[None]" = Future()
        try:
            self.loop.call_soon_threadsafe(self._start_saves, new, on_complete_callback, ended)
        except RuntimeError as e:
            self._saves.end(new)
            logger.warning("save: LMCache's event loop takes no more work: %s", e)
            return None
        return [ended]

    def get_blocking(self, key: CacheEngineKey) -> Optional[MemoryObj]:
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys: Keys) -> MaybeObjs:
        fault, lens = self._tiers.lookup(_names(keys))
        _told.fault("lookup", fault)
        objs = self._allocate_each(keys, lens)
        at = [n for n, obj in enumerate(objs) if obj is not None]
        answers: list[int] = []
        try:
            if at:
                fault, answers = self._tiers.load(_names([keys[n] for n in at]), memory([objs[n] for n in at]))
                _told.fault("load", fault)
        finally:
            keep(objs, at, answers)
        return objs

    async def batched_get_non_blocking(self, lookup_id: str, keys: Keys, transfer_spec: Any = None) -> Objs:
        """What is there from the first key on, up to the first that is not; positions are kept."""
        ask = self._ask()
        fault, lens = await ask.future(ask.queue.lookup(_names(keys), prefix=True))
        _told.fault("lookup", fault)
        objs = await allocated(lambda: self._allocate_each(keys, lens))
        at = [n for n, obj in enumerate(objs) if obj is not None]
        answers: list[int] = []
        try:
            if at:
                names, into = _names([keys[n] for n in at]), memory([objs[n] for n in at])
                fault, answers = await ask.home(ask.queue.load(names, into, prefetch=True))
                _told.fault("load", fault)
        finally:
            keep(objs, at, answers)
        first_miss = next((n for n, obj in enumerate(objs) if obj is None), len(objs))
        release(objs[first_miss:])
        return [obj for obj in objs[:first_miss] if obj is not None]

    def pin(self, key: CacheEngineKey) -> bool:
        return self.contains(key, pin=True)

    def unpin(self, key: CacheEngineKey) -> bool:
        self._tiers.release(_names([key]))
        return True

    def remove(self, key: CacheEngineKey, force: bool = True) -> bool:
        return self.batched_remove([key], force) == 1

    def batched_remove(self, keys: Keys, force: bool = True) -> int:
        """How many are gone. What is pinned stays."""
        fault, answers = self._tiers.remove(_names(keys))
        _told.fault("remove", fault)
        return sum(answer >= 0 for answer in answers)

    def touch_cache(self) -> None:
        """The tiers note by themselves what is used."""

    def get_allocator_backend(self) -> AllocatorBackendInterface:
        """Whose objects LMCache hands to saves: its own pinned ones, which it has filled anyway, or with ``save_from: gpu`` copies on the GPU."""
        if self.local_cpu_backend is None or (self._save_from == "gpu" and self._gpu is not None):
            return self
        return self.local_cpu_backend

    def get_memory_allocator(self) -> MemoryAllocatorInterface:
        return self._gpu if self._gpu is not None else self.local_cpu_backend.get_memory_allocator()

    def allocate(
        self,
        shapes: Any,
        dtypes: Any,
        fmt: MemoryFormat = MemoryFormat.KV_2LTD,
        eviction: bool = True,
        busy_loop: bool = True,
    ) -> Optional[MemoryObj]:
        """On the GPU where there is room, else in pinned memory."""
        obj = None if self._gpu is None else self._gpu.allocate(shapes, dtypes, fmt)
        if obj is None and self.local_cpu_backend is not None:
            obj = self.local_cpu_backend.allocate(shapes, dtypes, fmt, eviction=eviction, busy_loop=busy_loop)
        return obj

    def batched_allocate(
        self,
        shapes: Any,
        dtypes: Any,
        batch_size: int,
        fmt: MemoryFormat = MemoryFormat.KV_2LTD,
        eviction: bool = True,
        busy_loop: bool = True,
    ) -> Optional[Objs]:
        """All of them on the GPU or all in pinned memory."""
        objs = None if self._gpu is None else self._gpu.batched_allocate(shapes, dtypes, batch_size, fmt)
        if objs is None and self.local_cpu_backend is not None:
            objs = self.local_cpu_backend.batched_allocate(
                shapes, dtypes, batch_size, fmt, eviction=eviction, busy_loop=busy_loop
            )
        return objs

    def status(self) -> tuple[bool, list[str], dict[str, int]]:
        """Whether the tiers work, what an operator should know, and counters."""
        healthy, reasons, counters = self._tiers.status()
        return healthy, reasons, dict(counters)

    def close(self) -> None:
        """Waits until all I/O has ended. Where a medium does not end it, that is an error, and the memory on the GPU stays allocated."""
        tiers, self._tiers = self._tiers, Closed()
        if isinstance(tiers, Closed):
            return
        tiers.close()
        self._stop_asking()
        if self._gpu is not None:
            self._gpu.close()

    def __str__(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._tiers.name!r}>"

    def _ask(self) -> Asking:
        """LMCache's loop is not running yet when we are made."""
        if self._asking is None:
            self._asking = Asking(self._tiers.queue(), asyncio.get_running_loop())
        return self._asking

    def _stop_asking(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.stop_soon()

    def _register(self, tiers: _native.Tiers) -> None:
        """GPU memory with cuFile, and LMCache's pinned memory with the kernel. Without, all works as well."""
        pinned = getattr(getattr(self.local_cpu_backend, "memory_allocator", None), "buffer", None)
        on_gpu = getattr(self._gpu, "tensor", None)
        for arena, register in ((on_gpu, tiers.register_gpu), (pinned, tiers.register)):
            if isinstance(arena, torch.Tensor) and arena.numel() > 0:
                try:
                    came = register(arena.data_ptr(), arena.numel() * arena.element_size())
                except ValueError as e:
                    came = [str(e)]
                logger.info("memory of LMCache's: %s", "; ".join(came))

    def _start_saves(self, new: list[Saving], callback: OnSaved, ended: "Future[None]") -> None:
        """On the loop. It ends saves in callbacks of tasks: a task that is cancelled before it starts runs no code of its own."""
        if not ended.set_running_or_notify_cancel():
            self._saves.end(new)
            return
        tasks = []
        for one, group in self._by_shape(new):
            tasks.append(self.loop.create_task(self._save(one, group)))
            tasks[-1].add_done_callback(functools.partial(self._end_saves, group, callback))
        all_tasks = asyncio.gather(*tasks, return_exceptions=True)
        all_tasks.add_done_callback(lambda _: ended.set_result(None))

    def _by_shape(self, new: list[Saving]) -> list[tuple[Optional[Shape], list[Saving]]]:
        """One batch for the chunks of each shape, which the headers of their files state."""
        alike: dict[Optional[Shape], list[Saving]] = {}
        for saving in new:
            try:
                alike.setdefault(shape(saving.obj), []).append(saving)
            except Exception:
                # Without the rest of the key, which may have a tag that is a secret.
                chunk = saving.key.chunk_hash_hex
                logger.exception("save: LMCache does not say what shape the chunk %s has; it is not saved", chunk)
                self._saves.end([saving])
        return list(alike.items())

    async def _save(self, one: Optional[Shape], group: list[Saving]) -> list[int]:
        ask = self._ask()
        names, from_ = _names([saving.key for saving in group]), memory([saving.obj for saving in group])
        fault, answers = await ask.home(ask.queue.save(names, from_, one))
        _told.fault("save", fault)
        return answers

    def _end_saves(self, group: list[Saving], callback: OnSaved, task: "asyncio.Task[list[int]]") -> None:
        self._saves.end(group)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            known = isinstance(error, (ValueError, errors.Error))
            logger.warning("save: %s", error, exc_info=None if known else error)
            return
        for saving, answer in zip(group, task.result()):
            if callback is not None and answer >= 0:
                with _told.listeners():
                    callback(saving.key)

    def _allocate_each(self, keys: Keys, lens: list[int]) -> MaybeObjs:
        """Memory for each chunk that is there. Only the first waits for memory: a batch that is larger than all of it would wait for ever."""
        objs: MaybeObjs = []
        with released_unless_done(objs):
            for key, chunk_bytes in zip(keys, lens):
                is_first = all(obj is None for obj in objs)
                objs.append(self._allocate_one(key, chunk_bytes, is_first) if chunk_bytes > 0 else None)
        return objs

    def _allocate_one(self, key: CacheEngineKey, chunk_bytes: int, waits: bool) -> Optional[MemoryObj]:
        parts, fmt = groups(key, self.metadata, self.config)
        token_bytes = sum(group.token_bytes() for group in parts)
        tokens, rest = divmod(chunk_bytes, token_bytes)
        if rest != 0:
            logger.warning("load: a chunk of %d bytes has not whole tokens of %d bytes", chunk_bytes, token_bytes)
            return None
        obj = self.allocate(
            [group.shape(tokens) for group in parts], [group.dtype for group in parts], fmt, busy_loop=waits
        )
        if obj is not None and obj.get_size() != chunk_bytes:
            logger.warning("load: %d bytes of memory for a chunk of %d bytes", obj.get_size(), chunk_bytes)
            obj.ref_count_down()
            return None
        return obj


def _names(keys: Sequence[CacheEngineKey]) -> list[str]:
    return [key.to_string() for key in keys]


def _prefix(lens: list[int]) -> int:
    return next((at for at, chunk_bytes in enumerate(lens) if chunk_bytes < 0), len(lens))
