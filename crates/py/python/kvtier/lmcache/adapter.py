"""An L2 adapter for LMCache's multi-process server."""

import itertools
import sys
import threading
from types import MappingProxyType
from typing import Any, Optional

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import EncodedObjectKey, KeyEntry, KeyListPage, ObjectKey
from lmcache.v1.distributed.internal_api import L1MemoryDesc, L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.memory_management import MemoryObj

from .. import _log, _native, _lmcache_adapter_config

_log.follow_lmcache()

# LMCache holds a lookup lock for at most the lifetime of its first level's read lock, and then drops it.
LOCK_SECONDS = 300.0
# Parameters that belong to no tier.
OWN_PARAMS = ("timeout_seconds", "metrics")
# The most listings in progress; one more ends the oldest.
LISTINGS_MAX = 4


class KvtierL2AdapterConfig(L2AdapterConfigBase):  # type: ignore[misc]
    """``adapter_params``: LMCache's own object for ``--l2-adapter``, one kvtier tier, or several under ``tiers``."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> "KvtierL2AdapterConfig":
        if not d:
            raise ValueError("adapter_params is empty: write the object of the former adapter, or `tiers`")
        return cls(d)

    @classmethod
    def help(cls) -> str:
        return (
            "kvtier's adapter_params: an object of type fs, fs_native, raw_block or s3 as it stands, with its `eviction`, "
            'or {"tiers": [...]}, the fastest first'
        )


class KvtierL2Adapter(L2AdapterInterface):  # type: ignore[misc]
    """Stores, looks up and loads chunks over tiers. It has no thread: the tiers' threads signal the three descriptors."""

    def __init__(self, config: KvtierL2AdapterConfig, l1_memory_desc: Optional[L1MemoryDesc] = None) -> None:
        _lmcache_adapter_config.refuse_global_eviction(_lmcache_adapter_config.from_frame(sys._getframe().f_back))
        # No capacity for the base class: it counts only what this process stores, and LMCache would evict by that number.
        super().__init__(max_capacity_bytes=0)
        params = config.params
        own = {name: value for name, value in params.items() if name in OWN_PARAMS}
        rest = {name: value for name, value in params.items() if name not in OWN_PARAMS}
        self._tiers = _native.Tiers(
            {"adapter": rest},
            engine_keys=False,
            load_releases=False,  # Only `submit_unlock` ends a lock.
            hold_seconds=LOCK_SECONDS,
            needs_metrics=False,
            **own,
        )
        _log.opened(f"kvtier.lmcache.KvtierL2Adapter over {self._tiers.name!r}")
        self._stores, self._lookups, self._loads = (self._tiers.queue() for _ in range(3))
        self._lock = threading.Lock()
        self._storing: dict[int, tuple[list[ObjectKey], list[int]]] = {}
        self._looking: dict[int, int] = {}
        self._found: dict[int, Bitmap] = {}
        self._loading: dict[int, list[ObjectKey]] = {}
        self._loaded: dict[int, Bitmap] = {}
        self._listings: dict[str, list[Any]] = {}
        self._tokens = itertools.count(1)
        self._registered = self._register(l1_memory_desc)

    def _register(self, desc: Optional[L1MemoryDesc]) -> list[str]:
        """Registers the first level's memory, so that the kernel does not look up its pages for each transfer."""
        if desc is None:
            return ["no host memory to register"]
        stable = desc.stable_registration_size
        if not stable:
            return ["LMCache names no stable memory range: transfers use unregistered memory"]
        return self._tiers.register(desc.ptr, stable)

    def get_store_event_fd(self) -> int:
        return self._stores.event_fd

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookups.event_fd

    def get_load_event_fd(self) -> int:
        return self._loads.event_fd

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        with self._lock:
            bufs = [obj.byte_array for obj in objects]
            task = self._stores.save(keys, bufs)
            self._storing[task] = (list(keys), [len(buf) for buf in bufs])
        return task

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        results: dict[int, L2StoreResult] = {}
        with self._lock:
            completed = [(*done, *self._storing.pop(done[0])) for done in self._stores.poll()]
        for task, error, answers, keys, sizes in completed:
            _log.batch_error("store", error)
            if answers.count(1) < len(answers):
                # A chunk that existed already adds no bytes, but counts as stored.
                kept = [(key, size * answer) for key, size, answer in zip(keys, sizes, answers) if answer >= 0]
                keys, sizes = [key for key, _ in kept], [size for _, size in kept]
            results[task] = L2StoreResult(len(keys) == len(answers), sum(sizes))
            if keys:
                with _log.listener_errors():
                    self._notify_keys_stored(keys, sizes)
        return results

    def submit_lookup_and_lock_task(self, keys: list[ObjectKey], group_layout_descs: Any) -> int:
        with self._lock:
            task = self._lookups.lookup(keys, hold=True)
            self._looking[task] = len(keys)
        return task

    def query_lookup_and_lock_result(self, task_id: int) -> Optional[Bitmap]:
        with self._lock:
            for task, error, answers in self._lookups.poll():
                _log.batch_error("lookup", error)
                self._found[task] = _bitmap(answers)
                del self._looking[task]
            return self._found.pop(task_id, None)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        self._tiers.release(keys)

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        with self._lock:
            task = self._loads.load(keys, [obj.byte_array for obj in objects])
            self._loading[task] = list(keys)
        return task

    def query_load_result(self, task_id: int) -> Optional[Bitmap]:
        accessed: list[ObjectKey] = []
        with self._lock:
            for task, error, answers in self._loads.poll():
                _log.batch_error("load", error)
                self._loaded[task] = _bitmap(answers)
                keys = self._loading.pop(task)
                accessed += [key for key, answer in zip(keys, answers) if answer >= 0] if -1 in answers else keys
            result = self._loaded.pop(task_id, None)
        if accessed:
            with _log.listener_errors():
                self._notify_keys_accessed(accessed)
        return result

    def delete(self, keys: list[ObjectKey]) -> None:
        """Deletes chunks that are not locked, by this or another process on the same directory."""
        _, sizes = self._tiers.lookup(keys)
        error, answers = self._tiers.remove(keys)
        _log.batch_error("delete", error)
        removed = [at for at, answer in enumerate(answers) if answer >= 0 and sizes[at] >= 0]
        if removed:
            with _log.listener_errors():
                self._notify_keys_deleted([keys[at] for at in removed], [sizes[at] for at in removed])

    def list_l2_keys(
        self, model_name: Optional[str] = None, page_size: int = 500, cursor: Optional[str] = None
    ) -> KeyListPage:
        """Lists the stored chunks of all processes, as of the request for the first page. A cursor is valid once."""
        if page_size <= 0:
            raise ValueError(f"page_size must be above 0, not {page_size}")
        listing = self._tiers.listing() if cursor is None else self._listing(cursor)
        entries: list[KeyEntry] = []
        is_end = False
        while len(entries) < page_size and not is_end:
            wanted = page_size - len(entries)
            page = listing.page(wanted)
            is_end = len(page) < wanted
            parsed = ((_parse(name), size) for name, size in page)
            entries += [KeyEntry(key, size) for key, size in parsed if model_name in (None, key.model_name)]
        return KeyListPage(tuple(entries), None if is_end else self._remember(listing))

    def _listing(self, cursor: str) -> _native.Listing:
        with self._lock:
            listing = self._listings.pop(cursor, None)
        if listing is None:
            raise ValueError(f"cursor {cursor!r} is unknown, used or expired: start a new listing")
        found: _native.Listing = listing[0]
        return found

    def _remember(self, listing: _native.Listing) -> str:
        cursor = f"kvtier-{next(self._tokens)}"
        with self._lock:
            self._listings[cursor] = [listing]
            while len(self._listings) > LISTINGS_MAX:
                del self._listings[next(iter(self._listings))]
        return cursor

    def get_usage(self) -> AdapterUsage:
        """The usage by all processes; the capacity is 0 if there is none or the usage is unknown."""
        used, capacity, _, tenants = self._tiers.usage()
        return AdapterUsage(
            total_bytes_used=used or 0,
            total_capacity_bytes=capacity or 0 if used is not None else 0,
            bytes_by_cache_salt=MappingProxyType({salt: used for salt, used, _ in tenants if used > 0}),
        )

    def report_status(self) -> dict[str, Any]:
        healthy, reasons, counters = self._tiers.status()
        used, capacity, chunks, _ = self._tiers.usage()
        return {
            "is_healthy": healthy,
            "type": "kvtier",
            "tiers": self._tiers.name,
            "reasons": reasons,
            "registered_memory": self._registered,
            "current_size_bytes": used,
            "max_capacity_bytes": capacity,
            "chunks": chunks,
            "counters": dict(counters),
            "counters_by_tier": {tier["name"]: dict(tier["counters"]) for tier in self._tiers.tier_status()},
        }

    def close(self) -> None:
        self._tiers.close()


def _parse(name: str) -> EncodedObjectKey:
    model, rank, group, digest, *salt = name.split("@")
    return EncodedObjectKey(digest, model, int(rank, 16), int(group, 16), salt[0] if salt else "")


def _bitmap(answers: list[int]) -> Bitmap:
    if -1 not in answers:
        return Bitmap(len(answers), len(answers))
    bitmap = Bitmap(len(answers))
    bitmap.batched_set([at for at, answer in enumerate(answers) if answer >= 0])
    return bitmap
