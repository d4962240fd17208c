"""SGLang's side of the contract: the backend as its factory makes it, host pools, and pages by number."""

import hashlib
import os
import sys

import host_pools
from host_pools import indices
from real_sglang import StorageBackendFactory, hicache_storage

import kvtier.sglang  # noqa: F401

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from adapter_case import AdapterCase  # noqa: E402

# Memcheck and some sandboxes have no io_uring.
ENGINE = {"engine": os.environ["KVTIER_ENGINE"]} if "KVTIER_ENGINE" in os.environ else {}
KV = hicache_storage.PoolName.KV
Transfer = hicache_storage.PoolTransfer
Policy = hicache_storage.PoolHitPolicy


def key(n):
    """The name of a page, as SGLang makes it."""
    return hashlib.sha256(b"page %d" % n).hexdigest()


def keys(numbers):
    return [key(n) for n in numbers]


def config(extra=None, **change):
    """What SGLang says of its configuration."""
    fields = dict(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=True,
        is_page_first_layout=True,
        model_name="org/model",
        extra_config=extra,
    )
    fields.update(change)
    return hicache_storage.HiCacheStorageConfig(**fields)


class Case(AdapterCase):
    """Backends over a directory."""

    def file(self, **more):
        return {"type": "file", "path": self.dir, "bytes": "64MiB", "free_min": 0, **ENGINE, **more}

    def extra(self, tiers=None, **params):
        """The JSON of ``--hicache-storage-backend-extra-config``."""
        given = {"backend_name": "kvtier", "module_path": "kvtier.sglang", "class_name": "KvtierHiCache", "interface_v1": 1}
        given["tiers"] = tiers or [self.file()]
        given.update(params)
        return {name: value for name, value in given.items() if value is not None}

    def open(self, pool=None, tiers=None, pools=None, params=None, **change):
        """A backend with its pools registered, as SGLang's controller does."""
        pool = host_pools.mha_pool() if pool is None else pool
        storage_config = config(self.extra(tiers, **(params or {})), **change)
        backend = StorageBackendFactory.create_backend("dynamic", storage_config, pool)
        self.addCleanup(backend.close)
        backend.register_mem_pool_host(pool)
        for name, one in (pools or {}).items():
            backend.register_mem_host_pool_v2(one, name)
        backend.on_host_pools_registered()
        return backend

    def pool(self, backend):
        return backend.mem_pool_host

    def store(self, backend, numbers, rows=None):
        """Stores pages by the calls without copies; returns what SGLang would see."""
        numbers = list(numbers)
        rows = list(range(len(numbers)) if rows is None else rows)
        for n, row in zip(numbers, rows):
            host_pools.fill(self.pool(backend), row, n)
        return backend.batch_set_v1(keys(numbers), indices(rows))

    def load(self, backend, numbers, rows=None):
        """Loads pages into rows that hold something else; returns the results, and which rows have the right bytes."""
        numbers = list(numbers)
        rows = list(range(len(numbers)) if rows is None else rows)
        pool = self.pool(backend)
        for row in rows:
            host_pools.fill(pool, row, 1_000_000 + row)
        done = backend.batch_get_v1(keys(numbers), indices(rows))
        return done, [host_pools.read(pool, row) == self.content(pool, n) for n, row in zip(numbers, rows)]

    def content(self, pool, n):
        """The bytes of a page, made in the last row of the pool."""
        row = host_pools.PAGES - 1
        host_pools.fill(pool, row, n)
        return host_pools.read(pool, row)

    def counter(self, backend, name, tier=0):
        return dict(backend._core.tiers.tier_status()[tier]["counters"])[name]
