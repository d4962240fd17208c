"""A storage plugin for LMCache's in-process mode and GPU memory."""

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

from .. import _log, _native, errors
from .._aio import AsyncQueue
from .._log import logger
from .._shapes import Shape
from . import _gds_settings, _hash_check
from ._objects import groups, keep, memory, shape
from ._references import MaybeObjs, Saves, Saving, allocated, release, released_unless_done

_log.follow_lmcache()

Keys = list[CacheEngineKey]
Objs = list[MemoryObj]
OnSaved = Optional[Callable[[CacheEngineKey], None]]

# The alignment that direct I/O and cuFile need.
PAGE = 4096


class Closed:
    """Replaces closed tiers, since LMCache may use the plugin after ``close``. Nothing is stored, and the tiers' memory is freed."""

    name = "closed tiers"

    def lookup(self, names: list[str], **_: Any) -> tuple[None, list[int]]:
        return None, [-1] * len(names)

    def load(self, names: list[str], _: list[Any]) -> tuple[None, list[int]]:
        return self.lookup(names)

    def remove(self, names: list[str]) -> tuple[None, list[int]]:
        return self.lookup(names)

    def release(self, names: list[str]) -> None:
        """Does nothing: there are no holds."""

    def queue(self) -> _native.Queue:
        raise errors.Closed("the storage plugin is closed")

    def status(self) -> tuple[bool, list[str], list[tuple[str, int]]]:
        return False, ["closed"], []

    def close(self) -> None:
        """Does nothing."""


class KvtierGdsBackend(StoragePluginInterface, AllocatorBackendInterface):  # type: ignore[misc]
    """Stores chunks in the directory of ``extra_config["storage_plugin.<name>.gds_path"]`` (formerly ``gds_path``) as LMCache's own files, or
    in the kvtier tiers of ``storage_plugin.<name>.tiers``.

    Objects in GPU memory are transferred by cuFile or through the tier's pinned memory; those in LMCache's pinned memory by direct I/O. With
    ``gds_buffer_size``, loads go into that much GPU memory while it is free, else into LMCache's pinned memory.
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
        # Opened before GPU memory is allocated, and so released before it.
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
        _log.opened(self)
        _hash_check.warn(config)
        self._save_from = _gds_settings.save_from(config, name)
        self._queue: Optional[AsyncQueue] = None
        self._saves = Saves()
        self._gpu = self.initialize_allocator(config, metadata)
        if self._gpu is None and local_cpu_backend is None and metadata.role != "scheduler":
            raise ValueError("no memory to load into: set max_local_cpu_size, or gds_buffer_size on a machine with a GPU")
        self._register(self._tiers)

    def initialize_allocator(
        self, config: LMCacheEngineConfig, metadata: LMCacheMetadata
    ) -> Optional[MemoryAllocatorInterface]:
        """Allocates ``gds_buffer_size`` MiB on the GPU; ``None`` if loads go into LMCache's pinned memory."""
        if not config.gds_buffer_size or metadata.role == "scheduler":
            return None
        if not self.dst_device.startswith("cuda"):
            logger.warning("gds_buffer_size has no effect on %s: loads go into pinned memory", self.dst_device)
            return None
        if config.local_cpu and self.local_cpu_backend is not None:
            # LMCache would cache the loaded objects in the buffer and keep it full.
            logger.warning(
                "gds_buffer_size has no effect: with local_cpu: true LMCache keeps what was loaded in its cache of host memory, so loads go "
                "there; set local_cpu: false to load to the GPU"
            )
            return None
        return GPUMemoryAllocator(config.gds_buffer_size << 20, device=self.dst_device, align_bytes=PAGE)

    def contains(self, key: CacheEngineKey, pin: bool = False) -> bool:
        return self.batched_contains([key], pin) == 1

    def batched_contains(self, keys: Keys, pin: bool = False) -> int:
        """The number of keys found before the first miss."""
        error, lens = self._tiers.lookup(_names(keys), prefix=True, hold=pin)
        _log.batch_error("lookup", error)
        return _prefix(lens)

    async def batched_async_contains(self, lookup_id: str, keys: Keys, pin: bool = False) -> int:
        queue = self._async_queue()
        error, lens = await queue.completion(queue.native.lookup(_names(keys), prefix=True, hold=pin))
        _log.batch_error("lookup", error)
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
        """Saves in the background. The reference of an object is released when its save has ended, also after a cancellation or a failure.
        ``on_complete_callback`` is called for each stored chunk. The future can be cancelled only until the saves begin."""
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
        error, lens = self._tiers.lookup(_names(keys))
        _log.batch_error("lookup", error)
        objs = self._allocate_each(keys, lens)
        at = [n for n, obj in enumerate(objs) if obj is not None]
        answers: list[int] = []
        try:
            if at:
                error, answers = self._tiers.load(_names([keys[n] for n in at]), memory([objs[n] for n in at]))
                _log.batch_error("load", error)
        finally:
            keep(objs, at, answers)
        return objs

    async def batched_get_non_blocking(self, lookup_id: str, keys: Keys, transfer_spec: Any = None) -> Objs:
        """Loads the chunks before the first miss, in the order of the keys."""
        queue = self._async_queue()
        error, lens = await queue.completion(queue.native.lookup(_names(keys), prefix=True))
        _log.batch_error("lookup", error)
        objs = await allocated(lambda: self._allocate_each(keys, lens))
        at = [n for n, obj in enumerate(objs) if obj is not None]
        answers: list[int] = []
        try:
            if at:
                names, into = _names([keys[n] for n in at]), memory([objs[n] for n in at])
                error, answers = await queue.shielded(queue.native.load(names, into, prefetch=True))
                _log.batch_error("load", error)
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
        """Removes chunks that are not pinned, and returns their number."""
        error, answers = self._tiers.remove(_names(keys))
        _log.batch_error("remove", error)
        return sum(answer >= 0 for answer in answers)

    def touch_cache(self) -> None:
        """Does nothing: the tiers record accesses themselves."""

    def get_allocator_backend(self) -> AllocatorBackendInterface:
        """The allocator of the objects that LMCache saves: its own pinned ones, which it fills anyway, or with ``save_from: gpu`` copies on the
        GPU."""
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
        """Allocates on the GPU while memory is free, else in pinned memory."""
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
        """Allocates all objects on the GPU, or all in pinned memory."""
        objs = None if self._gpu is None else self._gpu.batched_allocate(shapes, dtypes, batch_size, fmt)
        if objs is None and self.local_cpu_backend is not None:
            objs = self.local_cpu_backend.batched_allocate(
                shapes, dtypes, batch_size, fmt, eviction=eviction, busy_loop=busy_loop
            )
        return objs

    def status(self) -> tuple[bool, list[str], dict[str, int]]:
        """Health of the tiers, the reasons for it, and counters."""
        healthy, reasons, counters = self._tiers.status()
        return healthy, reasons, dict(counters)

    def close(self) -> None:
        """Waits until all I/O has ended. If a medium hangs, that is an error, and the GPU memory stays allocated."""
        tiers, self._tiers = self._tiers, Closed()
        if isinstance(tiers, Closed):
            return
        tiers.close()
        self._detach_queue()
        if self._gpu is not None:
            self._gpu.close()

    def __str__(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._tiers.name!r}>"

    def _async_queue(self) -> AsyncQueue:
        """Creates the queue on first use, since LMCache's loop does not run yet when the plugin is created."""
        if self._queue is None:
            self._queue = AsyncQueue(self._tiers.queue(), asyncio.get_running_loop())
        return self._queue

    def _detach_queue(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.detach_threadsafe()

    def _register(self, tiers: _native.Tiers) -> None:
        """Registers GPU memory with cuFile, and LMCache's pinned memory with the kernel. A failure costs only speed."""
        pinned = getattr(getattr(self.local_cpu_backend, "memory_allocator", None), "buffer", None)
        on_gpu = getattr(self._gpu, "tensor", None)
        for arena, register in ((on_gpu, tiers.register_gpu), (pinned, tiers.register)):
            if isinstance(arena, torch.Tensor) and arena.numel() > 0:
                try:
                    outcome = register(arena.data_ptr(), arena.numel() * arena.element_size())
                except ValueError as e:
                    outcome = [str(e)]
                logger.info("register LMCache's memory: %s", "; ".join(outcome))

    def _start_saves(self, new: list[Saving], callback: OnSaved, ended: "Future[None]") -> None:
        """Runs on the loop. Callbacks of the tasks end the saves, because a task that is cancelled before it starts runs no code."""
        if not ended.set_running_or_notify_cancel():
            self._saves.end(new)
            return
        tasks = []
        for chunk_shape, group in self._by_shape(new):
            tasks.append(self.loop.create_task(self._save(chunk_shape, group)))
            tasks[-1].add_done_callback(functools.partial(self._end_saves, group, callback))
        all_tasks = asyncio.gather(*tasks, return_exceptions=True)
        all_tasks.add_done_callback(lambda _: ended.set_result(None))

    def _by_shape(self, new: list[Saving]) -> list[tuple[Optional[Shape], list[Saving]]]:
        """One batch per shape, since the header of a file states the shape."""
        by_shape: dict[Optional[Shape], list[Saving]] = {}
        for saving in new:
            try:
                by_shape.setdefault(shape(saving.obj), []).append(saving)
            except Exception:
                # The rest of the key may contain a tag that is a secret.
                chunk = saving.key.chunk_hash_hex
                logger.exception("save: LMCache names no shape for the chunk %s; it is not saved", chunk)
                self._saves.end([saving])
        return list(by_shape.items())

    async def _save(self, chunk_shape: Optional[Shape], group: list[Saving]) -> list[int]:
        queue = self._async_queue()
        names = _names([saving.key for saving in group])
        from_ = memory([saving.obj for saving in group])
        error, answers = await queue.shielded(queue.native.save(names, from_, chunk_shape))
        _log.batch_error("save", error)
        return answers

    def _end_saves(self, group: list[Saving], callback: OnSaved, task: "asyncio.Task[list[int]]") -> None:
        self._saves.end(group)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            is_expected = isinstance(error, (ValueError, errors.Error))
            logger.warning("save: %s", error, exc_info=None if is_expected else error)
            return
        for saving, answer in zip(group, task.result()):
            if callback is not None and answer >= 0:
                with _log.listener_errors():
                    callback(saving.key)

    def _allocate_each(self, keys: Keys, lens: list[int]) -> MaybeObjs:
        """Allocates memory for each chunk that was found. Only the first waits: a batch that exceeds all memory would wait for ever."""
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
            logger.warning("load: a chunk of %d bytes is not a multiple of %d bytes per token", chunk_bytes, token_bytes)
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
