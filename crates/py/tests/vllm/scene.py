"""An engine's side of the contract: its memory, its specification, its requests and its steps."""

import hashlib
import mmap
import os
import sys
import time

import numpy as np
import real_vllm
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingSpec,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

import kvtier.vllm

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from adapter_case import AdapterCase  # noqa: E402

HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY
STEP_END = ScheduleEndContext((), ())
ROW = 64 * 1024
ROWS = 32
# Tokens of a chunk.
CHUNK_TOKENS = 64
# Memcheck and some sandboxes have no io_uring.
ENGINE = {"engine": os.environ["KVTIER_ENGINE"]} if "KVTIER_ENGINE" in os.environ else {}


class Spec(OffloadingSpec):
    """vLLM's own specification, of which a tier sees the configuration only."""

    get_manager = get_worker = None


Spec.__abstractmethods__ = frozenset()


def config(groups=1, events=True, ids=None, **change):
    """A configuration of vLLM; ``ids`` are those of its groups, and ``change`` replaces fields of any part of it."""
    parallel = dict(
        rank=0,
        world_size=1,
        tp_size=1,
        pp_size=1,
        pcp_size=1,
        dcp_size=1,
        data_parallel_index=0,
        data_parallel_size=1,
        data_parallel_rank_local=None,
        is_parallelism_agnostic=False,
    )
    parallel.update({name: change.pop(name) for name in list(change) if name in parallel})
    group = dict(tokens_per_block=16, layer_names=("layer.0", "layer.1"))
    group.update({name: change.pop(name) for name in list(change) if name in group})
    cache = dict(tokens_per_hash=16, blocks_per_chunk=4)
    cache.update({name: change.pop(name) for name in list(change) if name in cache})
    model = dict(name="org/model", dtype="bfloat16")
    model.update({name: change.pop(name) for name in list(change) if name in model})
    whole = dict(
        worker_kv_bytes_per_block=ROW // 4,
        enable_kv_cache_events=events,
        extra_config={},
        engine_id="engine",
        kv_cache_layout="NHD",
    )
    whole.update(change)
    return OffloadingConfig(
        groups=tuple(OffloadingGroupConfig(group_id=n, **group) for n in (range(groups) if ids is None else ids)),
        model=OffloadingModelConfig(**model),
        cache=OffloadingCacheConfig(**cache),
        parallel=OffloadingParallelConfig(**parallel),
        **whole,
    )


def key(n, group=0):
    return make_offload_key(hashlib.sha256(f"chunk {n}".encode()).digest(), group)


def keys(numbers, group=0):
    return [key(n, group) for n in numbers]


def content(n, group=0, row=ROW):
    return np.random.default_rng([n, group]).integers(-128, 128, row, dtype=np.int8)


class Memory:
    """vLLM's region: rows over a mapping, which can be unmapped only when no view of it is left."""

    def __init__(self, rows=ROWS, row=ROW):
        self.map = mmap.mmap(-1, rows * row)
        self.array = np.frombuffer(self.map, dtype=np.int8).reshape(rows, row)
        self.view = memoryview(self.array)

    # What vLLM's manager of the primary tier calls.
    def create_kv_memoryview(self):
        return self.view

    def cleanup(self):
        self.unmap()

    def unmap(self):
        self.view.release()
        self.array = None
        # Raises BufferError while anything still refers to the memory.
        self.map.close()


class Case(AdapterCase):
    """One tier over a directory, or over other tiers, and an engine that drives it."""

    def setUp(self):
        super().setUp()
        self.jobs = 0
        self.requests = 0

    def file(self, **more):
        return {"type": "file", "path": self.dir, "bytes": "64MiB", "free_min": 0, **ENGINE, **more}

    def open(self, tiers=None, spec=None, memory=None, **params):
        memory = memory or Memory()
        spec = Spec(spec or config())
        given = {"type": "KvtierTier", "module_path": "kvtier.vllm", "tiers": tiers or [self.file()], **params}
        if "config" in params:
            del given["tiers"]
        tier = SecondaryTierFactory.create_secondary_tier(given, memory.view, spec)
        tier.memory = memory
        self.addCleanup(tier.shutdown)
        return tier

    def request(self, tier=None, params=None, hints=None, **more):
        self.requests += 1
        context = ReqContext(f"request {self.requests}", params, hints, **more)
        if tier is not None:
            tier.on_new_request(context)
        return context

    def submit(self, tier, wanted, rows, load, request=None):
        self.jobs += 1
        request = request or self.request(tier)
        job = TransferJob(self.jobs, list(wanted), np.array(list(rows), dtype=np.int32), load, request)
        (tier.submit_load if load else tier.submit_store)(job)
        return self.jobs

    def end(self, tier, job, seconds=300):
        """Steps until the job ended, as vLLM does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for result in tier.get_finished_jobs():
                if result.job_id == job:
                    return result
            self.assertTrue(tier.has_pending_work())
            time.sleep(0.0005)
        self.fail("the job does not end")

    def store(self, tier, numbers, rows=None, request=None, group=0):
        numbers = list(numbers)
        rows = range(len(numbers)) if rows is None else rows
        for n, row in zip(numbers, rows):
            tier.memory.array[row] = content(n, group)
        return self.end(tier, self.submit(tier, keys(numbers, group), rows, False, request))

    def load(self, tier, numbers, rows=None, request=None, group=0):
        """Loads chunks into rows that hold something else; returns the result and which rows have the right bytes."""
        numbers = list(numbers)
        rows = list(range(len(numbers)) if rows is None else rows)
        tier.memory.array[rows] = 85
        result = self.end(tier, self.submit(tier, keys(numbers, group), rows, True, request))
        return result, [bool((tier.memory.array[row] == content(n, group)).all()) for n, row in zip(numbers, rows)]

    def lookup(self, tier, numbers, request=None, group=0):
        request = request or self.request(tier)
        return [tier.lookup(one, request) for one in keys(numbers, group)]

    def values(self, tier):
        """All counters and gauges that changed, by name and labels."""
        tier._stats._next_read = 0
        return tier.get_stats().data["data"]

    def settled(self, tier, numbers, request=None, seconds=300):
        """Steps until no lookup must be tried again; returns the answers and the number of steps."""
        request, step, deadline = request or self.request(tier), 0, time.monotonic() + seconds
        while RETRY in (found := self.lookup(tier, numbers, request)):
            self.assertLess(time.monotonic(), deadline, "lookups are not answered")
            tier.on_schedule_end(STEP_END)
            time.sleep(0.001)
            step += 1
        return found, step
