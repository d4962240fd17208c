"""``KvtierHiCache``: kvtier's tiers as the third level of SGLang's hierarchical cache."""

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from typing import Any, Optional

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolName, PoolTransfer, PoolTransferResult

from .. import _engine, _log, _native
from . import _host_memory, _pool_hits, _stats
from ._host_pool import Chain, HostPool, Moved
from ._settings import WHERE, Settings

# Names of a page of a listing.
LISTED = 1024


class KvtierHiCache(HiCacheStorage):  # type: ignore[misc]
    """A storage backend for ``--hicache-storage-backend dynamic``.

    Its parameters are in ``extra_config``, beside SGLang's own: ``tiers`` is a list of kvtier's specs, the fastest first; ``config`` is the path of
    a configuration file instead. A call ends at the latest after ``timeout_seconds``, with the pages that were moved until then. ``weights`` names
    the model's weights: engines with other weights do not share pages. With ``share_data_parallel: false`` neither do the ranks of data parallelism. ``metrics`` is the
    address of a Prometheus endpoint.

    No call raises after the start: what fails is a miss or a page that was not stored, and SGLang computes it.
    """

    def __init__(self, storage_config: Any, kwargs: Optional[dict[str, Any]] = None) -> None:
        self._config = storage_config
        self._settings = Settings.read(storage_config.extra_config or {})
        settings = self._settings
        self._core = _engine.Core(WHERE, settings.tiers, settings.config, settings.timeout_seconds, settings.metrics)
        self._stats = _stats.Stats(bool(storage_config.enable_storage_metrics))
        self._pools: dict[str, HostPool] = {}
        self._registering = threading.Lock()
        # The names of pools without whose page a page of the KV is of no use.
        self._needed: frozenset[str] = frozenset()
        self._is_closed = False
        self._clearing_lock = threading.Lock()
        self._clearing: Optional[concurrent.futures.Future[int]] = None
        _log.opened(f"{WHERE} over {self._core.name!r}, rank {storage_config.tp_rank} of {storage_config.tp_size}")

    # -- host pools -------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._register(str(PoolName.KV), mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(str(host_pool_name), host_pool)

    def _register(self, name: str, pool: Any) -> None:
        # A group of pools is known by its anchor.
        pool = getattr(getattr(pool, "anchor_entry", None), "host_pool", pool)
        with self._registering:
            known = self._pools.get(name)
            if known is None or known.pool is not pool:
                host_pool = HostPool(self._core, self._config, self._settings.names, name, pool)
                if host_pool.is_logical and not self._settings.is_zero_copy:
                    raise ValueError(f'{WHERE}: pool {name!r} has no pages of its own to copy: set "interface_v1": 1')
                self._pools[name] = host_pool

    def _pool(self, name: Any) -> HostPool:
        pool = self._pools.get(str(name))
        if pool is None:
            raise ValueError(f"pool {str(name)!r} is not registered; these are: {', '.join(sorted(self._pools)) or 'none'}")
        return pool

    # -- lookups ----------------------------------------------------------------------------------

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        try:
            pool = self._pool(PoolName.KV)
            if pool.is_logical:
                # Ranks that share another rank's memory have none of their own, and that rank answers for all. Without any memory nothing is stored.
                return len(keys) if getattr(pool.pool, "_is_dummy", False) else 0
            return self._kv_prefix(pool, keys)
        except Exception as e:
            self._failed("lookup", e)
            return 0

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Optional[list[PoolTransfer]] = None, extra_info: Any = None
    ) -> PoolTransferResult:
        try:
            pool = self._pool(PoolName.KV)
            kv_pages = len(keys) if pool.is_logical else self._kv_prefix(pool, keys)

            def prefix(name: Any, names: Sequence[str]) -> int:
                return self._pool(name).prefix(names)

            def present(name: Any, names: Sequence[str]) -> list[bool]:
                return self._pool(name).present(names)

            return _pool_hits.restorable(keys, kv_pages, pool_transfers or (), prefix, present)
        except Exception as e:
            self._failed("lookup", e)
            return PoolTransferResult(0, {}, [])

    def _kv_prefix(self, pool: HostPool, keys: Sequence[str]) -> int:
        """How many pages are stored, from the first one, in the form that this engine moves them in."""
        return pool.prefix(keys) if self._settings.is_zero_copy or pool.flat is None else pool.flat.prefix(keys)

    # -- pages of host pools ----------------------------------------------------------------------

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._load(PoolName.KV, keys, host_indices, Chain.of_call(extra_info))

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._save(PoolName.KV, keys, host_indices, Chain.of_call(extra_info))

    def batch_get_v2(self, transfers: list[PoolTransfer], extra_info: Any = None) -> dict[str, list[bool]]:
        # The keys of a pool may be the last of the prefix only, or later ones: none of them has a known place in the chain.
        return {one.name: self._load(one.name, one.keys or [], one.host_indices, Chain()) for one in transfers}

    def batch_set_v2(self, transfers: list[PoolTransfer], extra_info: Any = None) -> dict[str, list[bool]]:
        # SGLang states the policy with each transfer, and stores these pools before the KV.
        with self._registering:
            self._needed |= {str(one.name) for one in transfers if one.hit_policy == PoolHitPolicy.ALL_PAGES and str(one.name) != PoolName.KV}
        return {one.name: self._save(one.name, one.keys or [], one.host_indices, Chain()) for one in transfers}

    def _load(self, name: Any, keys: list[str], indices: Any, chain: Chain) -> list[bool]:
        def load(pool: HostPool) -> Moved:
            return Moved([True] * len(keys)) if pool.is_logical else pool.load(keys, indices, chain)

        return self._move("load", name, len(keys), load)

    def _save(self, name: Any, keys: list[str], indices: Any, chain: Chain) -> list[bool]:
        def save(pool: HostPool) -> Moved:
            # Another rank writes the same bytes, or there are none.
            is_elsewhere = pool.is_logical or not pool.is_writer
            return Moved([True] * len(keys)) if is_elsewhere else pool.save(keys, indices, chain, self._together(name))

        return self._move("store", name, len(keys), save)

    def _together(self, name: Any) -> list[_native.EnginePool]:
        """The pools whose pages form atomic sets with those of this pool. Pools of which a prefix needs the last pages only are not among them: a page
        of the KV is of use without theirs."""
        needed, kv = self._needed, str(PoolName.KV)
        if not needed or str(name) not in needed | {kv}:
            return []
        found = []
        for one in sorted(needed | {kv}):
            pool = self._pools.get(one)
            # Pages of another rank, which this process does not store, make no set here.
            if pool is not None and pool.is_writer:
                found.extend([pool.flat] if one == kv and pool.flat is not None and not self._settings.is_zero_copy else pool.shards)
        return found

    def _move(self, what: str, name: Any, count: int, move: Callable[[HostPool], Moved]) -> list[bool]:
        """Moves pages. Of a call that fails as a whole no page was moved."""
        try:
            moved = move(self._pool(name))
        except Exception as e:
            self._failed(what, e)
            return [False] * count
        self._stats.moved(what == "load", moved)
        if not all(moved.done):
            self._core.log_failure(what, moved.error)
        return moved.done

    # -- pages as tensors -------------------------------------------------------------------------

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Optional[Any]:
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Optional[Any]]:
        found: list[Any] = []

        def load(pool: HostPool) -> Moved:
            targets = target_locations or [pool.pool.get_dummy_flat_data_page() for _ in keys]
            found.extend(targets)
            return self._move_tensors(pool, keys, targets, is_load=True)

        done = self._move("load", PoolName.KV, len(keys), load)
        return [target if is_done else None for target, is_done in zip(found or [None] * len(keys), done)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [target_location if value is None else value])

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        tensors = values if values is not None else target_locations

        def save(pool: HostPool) -> Moved:
            if not pool.is_writer:
                return Moved([True] * len(keys))
            return self._move_tensors(pool, keys, [tensor.contiguous() for tensor in tensors], is_load=False)

        return all(self._move("store", PoolName.KV, len(keys), save))

    def _move_tensors(self, pool: HostPool, keys: list[str], tensors: list[Any], is_load: bool) -> Moved:
        if pool.flat is None:
            raise ValueError(f'pool {pool.name!r} has no flat pages: set "interface_v1": 1')
        if len(tensors) != len(keys):
            raise ValueError(f"{len(keys)} pages and {len(tensors)} tensors")
        moved = Moved([True] * len(keys))
        if not keys:
            return moved
        regions = [_native.Region(_host_memory.as_buffer(tensor)) for tensor in tensors]
        pages = (keys, [region.address for region in regions], [len(region) for region in regions], None, None)
        try:
            moved.add(pool.flat.load(pages, regions) if is_load else pool.flat.save(pages, regions, self._together(PoolName.KV)))
        finally:
            # A save that a medium still reads keeps its tensor until then.
            for region in regions:
                region.release()
        return moved

    # -- the backend ------------------------------------------------------------------------------

    def clear(self) -> bool:
        """Deletes the pages of this engine's namespaces, and those of no other. Returns whether that was possible within the time of a call; what
        takes longer goes on in the background."""
        # SGLang calls it on its scheduler's thread, which a medium that hangs must not keep.
        with self._clearing_lock:
            if self._clearing is None or self._clearing.done():
                self._clearing = concurrent.futures.Future()
                threading.Thread(target=self._clear, args=(self._clearing,), name="kvtier-clear", daemon=True).start()
            clearing = self._clearing
        try:
            removed = clearing.result(self._settings.timeout_seconds)
        except TimeoutError:
            self._failed("clear", TimeoutError(f"not done after {self._settings.timeout_seconds} s; it goes on in the background"))
            return False
        except Exception as e:
            self._failed("clear", e)
            return False
        _log.logger.info("deleted %d pages of %s", removed, WHERE)
        return True

    def _clear(self, result: "concurrent.futures.Future[int]") -> None:
        try:
            result.set_result(sum(self._clear_pool(pool) for pool in list(self._pools.values())))
        except BaseException as e:
            # The caller waits for an end, whatever it is.
            result.set_exception(e)

    def _clear_pool(self, pool: HostPool) -> int:
        if self._core.tiers is None or not pool.shards:
            return 0
        mine = {f"{pool.model}@{rank:08x}@0@" for rank in pool.ranks}
        try:
            listing = self._core.tiers.listing()
        except NotImplementedError as e:
            raise NotImplementedError(
                f'{e}. To find none of these pages again, restart SGLang with another "weights"; to delete them, stop all engines of this bucket and '
                "delete the objects under its prefix"
            ) from e
        removed = 0
        while page := listing.page(LISTED):
            names = [name.rpartition("@") for name, _ in page]
            removed += pool.remove([digest for head, _, digest in names if head + "@" in mine])
        return removed

    def get_stats(self) -> Optional[Any]:
        """What was moved since the last call, for SGLang's metrics."""
        return self._stats.take()

    def close(self) -> None:
        """Ends all work and releases the host pools. SGLang calls it when the backend is detached; what is stored stays.

        :raises TimeoutError: if a medium still uses memory of a pool.
        """
        if self._is_closed:
            return
        self._core.close()
        self._is_closed = True
        self._pools.clear()

    def _failed(self, what: str, error: Exception) -> None:
        # After `close` every call fails, as it should.
        if not self._is_closed:
            self._core.log_failure(what, (type(error).__name__, str(error)))
