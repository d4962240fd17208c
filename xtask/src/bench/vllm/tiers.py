"""One of vLLM's secondary tiers, through its real class, driven as vLLM's scheduler drives it: jobs of chunks between rows of the CPU tier's
region and the medium.

Called as `tiers.py WHERE SIZE INFLIGHT CHUNKS KIND`, with a directory or the address of the S3 server in memory; prints a list of samples.
"""

import collections
import hashlib
import mmap
import os
import socket
import sys
import time
from types import SimpleNamespace

# Without it the tier `obj` cannot finish a transfer. NIXL reads it when it is imported.
os.environ["NIXL_TELEMETRY_ENABLE"] = "y"
sys.path.insert(0, os.path.dirname(__file__))
import measure
import numpy as np
from vllm.v1.kv_offload import config as offload
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

# Chunks of a job, and jobs in flight: a tier of vLLM's may move the chunks of one job one after the other.
JOB_CHUNKS = 8
# Keys of a lookup, and chunks of the job whose cost in the scheduler's thread is measured.
LOOKUP_KEYS = 1000
LONG_JOB_CHUNKS = 64
# The longest that a job may take.
LIMIT_S = 120
BUCKET = {"s3_region": "us-east-1", "aws_access_key_id": "AKIDTEST", "aws_secret_access_key": "secret/test+key"}


def specification(size):
    """What vLLM hands to a tier: a model of one group, on one GPU."""
    config = offload.OffloadingConfig(
        groups=(offload.OffloadingGroupConfig(16, ("layer.0", "layer.1"), 0),),
        worker_kv_bytes_per_block=size,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="bench",
        model=offload.OffloadingModelConfig("bench/model", "bfloat16"),
        cache=offload.OffloadingCacheConfig(16, 1),
        parallel=offload.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
        kv_cache_layout="NHD",
    )
    events = SimpleNamespace(enable_kv_cache_events=False, self_describing_kv_events=False)
    return SimpleNamespace(config=config, blocks_per_chunk=1, kv_events_config=events)


def parameters(kind, where, size, chunks):
    """The object in `secondary_tiers`. All have space for everything: moving is measured, as most of them have no cap."""
    looked_up = LOOKUP_KEYS if chunks >= LOOKUP_KEYS else 0
    space = 2 * size * (chunks + looked_up + LONG_JOB_CHUNKS) + (64 << 20)
    address = where.removeprefix("http://")
    if kind.startswith("kvtier"):
        tier = {"type": "file", "path": where, "bytes": space, "free_min": 0}
        if where.startswith("http://"):
            tier = {"type": "s3", "s3_endpoint": where, "bucket": "bench", **BUCKET}
        return {"type": "KvtierTier", "module_path": "kvtier.vllm", "tiers": [tier]}
    if kind == "fs":
        return {"type": "fs", "root_dir": where}
    if kind == "obj":
        store = {"bucket": "bench", "endpoint_override": address, "scheme": "http", "region": "us-east-1"}
        return {"type": "obj", "store_config": {**store, "access_key": "AKIDTEST", "secret_key": "secret/test+key"}}
    if kind == "kvcr":
        files = {"paths": [f"{where}/kvcr"], "capacity_bytes_per_file": space, "backend": "POSIX"}
        # What routers ask for is served at a port; nothing connects to it here.
        control = {"router_capabilities": ["router_hint"], "control_host": "127.0.0.1", "control_ports": [free_port()]}
        return {"type": "kvcr", **control, "g3": files, "secondary_g2_slots": 64}
    raise SystemExit(f"no tier of the name {kind}")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def check_rival(kind, tier):
    """A rival runs as its users would run it at its best, or not at all."""
    if kind == "fs":
        from vllm.v1.kv_offload.tiering.fs import io, manager

        assert io._HAS_FSIO_C and manager._HAS_BATCH_LOOKUP_C, "vLLM's fs tier runs without its C extension"
        assert tier._use_o_direct, "vLLM's fs tier runs without O_DIRECT: choose another directory"


def region(size, rows):
    """The CPU tier's memory: a file in /dev/shm, touched, with content that differs from page to page."""
    name = f"/dev/shm/kvtier_bench_{os.getpid()}.mmap"
    file = os.open(name, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600)
    os.unlink(name)
    os.ftruncate(file, size * rows)
    memory = mmap.mmap(file, size * rows)
    array = np.frombuffer(memory, dtype=np.int8).reshape(rows, size)
    words = array.reshape(-1).view(np.uint64)
    words[:] = np.arange(words.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return array


def key(number):
    return make_offload_key(hashlib.sha256(number.to_bytes(8, "little")).digest(), 0)


class Scheduler:
    """Calls the tier as vLLM's scheduler does, from one thread, and counts that thread's time in the tier."""

    def __init__(self, tier, repeats_stores):
        self.tier, self.jobs, self.in_tier, self.next_job = tier, {}, 0.0, 0
        # A tier that moves chunks through memory of its own may refuse stores while that is full.
        self.repeats_stores = repeats_stores

    def call(self, function, *args):
        began = time.thread_time()
        answer = function(*args)
        self.in_tier += time.thread_time() - began
        return answer

    def submit(self, numbers, rows, is_load, request):
        job = TransferJob(self.next_job, [key(n) for n in numbers], np.asarray(rows, dtype=np.int32), is_load, request)
        self.next_job += 1
        self.jobs[job.job_id] = (time.monotonic(), job)
        self.call(self.tier.submit_load if is_load else self.tier.submit_store, job)

    def finished(self):
        """The rows and the latency of jobs that ended; all must have succeeded."""
        self.call(self.tier.on_schedule_end, ScheduleEndContext((), ()))
        ended = []
        for result in self.call(lambda: list(self.tier.get_finished_jobs())):
            began, job = self.jobs.pop(result.job_id)
            if not result.success and self.repeats_stores and not job.is_promotion:
                self.jobs[job.job_id] = (began, job)
                self.call(self.tier.submit_store, job)
                continue
            assert result.success, "a job failed"
            ended.append((list(job.chunk_ids), time.monotonic() - began))
        assert all(time.monotonic() - began < LIMIT_S for began, _ in self.jobs.values()), "a job does not end"
        return ended


def transfer(stage, scheduler, first, rows, is_load):
    """Moves the stage's chunks in jobs, as many at once as there are rows."""
    request = ReqContext(f"{stage.op}-{first}")
    scheduler.tier.on_new_request(request)
    free = collections.deque(rows[at : at + JOB_CHUNKS] for at in range(0, len(rows), JOB_CHUNKS))
    jobs = collections.deque(measure.batches(stage.chunks, JOB_CHUNKS))
    while jobs or scheduler.jobs:
        while jobs and free:
            numbers, slots = jobs.popleft(), free.popleft()
            scheduler.submit([first + n for n in numbers], slots[: len(numbers)], is_load, request)
        for slots, seconds in scheduler.finished():
            free.append(slots)
            stage.seconds.append(seconds)
        time.sleep(0.0002)
    scheduler.tier.on_request_finished(request)


def long_job(scheduler, first, rows, is_load):
    """Microseconds of the scheduler's thread in the tier, for one job of many chunks."""
    request = ReqContext(f"long-{is_load}")
    scheduler.tier.on_new_request(request)
    before = scheduler.in_tier
    scheduler.submit(range(first, first + len(rows)), rows, is_load, request)
    steps = 0
    while scheduler.jobs:
        scheduler.finished()
        time.sleep(0.005)
        steps += 1
    scheduler.tier.on_request_finished(request)
    return (scheduler.in_tier - before) * 1e6


def lookups(scheduler, numbers, wanted):
    """Looks up distinct keys of one new request until all are answered."""
    tier, keys = scheduler.tier, [key(n) for n in numbers]
    request = ReqContext(f"lookup-{wanted.name}")
    tier.on_new_request(request)
    busy, began, steps, first_answer = 0.0, time.monotonic(), 0, None
    open_keys = keys
    while open_keys:
        at = time.perf_counter()
        answers = [tier.lookup(k, request) for k in open_keys]
        busy += time.perf_counter() - at
        if first_answer is None and any(a is not LookupResult.RETRY for a in answers):
            first_answer = steps
        assert all(a in (wanted, LookupResult.RETRY) for a in answers), f"a lookup is not {wanted}"
        open_keys = [k for k, a in zip(open_keys, answers) if a is LookupResult.RETRY]
        if open_keys:
            tier.on_schedule_end(ScheduleEndContext((), ()))
            steps += 1
            time.sleep(0)
    until = time.monotonic() - began
    tier.on_request_finished(request)
    return {
        "op": "lookup",
        "how": wanted.name.lower(),
        "us_per_key": busy * 1e6 / len(keys),
        "ms_until_answered": until * 1e3,
        "steps_to_first_answer": first_answer,
        "steps": steps,
    }


def written(where):
    """Everything is on the device."""
    if not where.startswith("http://"):
        descriptor = os.open(where, os.O_RDONLY)
        measure.ctypes.CDLL(None).syncfs(descriptor)
        os.close(descriptor)


def forget_pages():
    """The page cache holds nothing that is read next; a machine that forbids it has O_DIRECT alone."""
    try:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("1")
    except OSError:
        pass


def main():
    where, size, inflight, chunks, kind = measure.arguments()
    rows = max(inflight, JOB_CHUNKS)
    array = region(size, rows)
    want = array.copy() if size <= 2 << 20 else None
    # Like vLLM's own region: rows, one after the other, page-aligned.
    tier = SecondaryTierFactory.create_secondary_tier(parameters(kind, where, size, chunks), memoryview(array), specification(size))
    check_rival(kind, tier)
    scheduler, slots, samples = Scheduler(tier, kind == "kvcr"), list(range(rows)), []
    for op, is_load in (("store", False), ("load", True)):
        if is_load:
            forget_pages()
        stage = measure.Stage(op, kind, size, chunks)
        scheduler.in_tier = 0.0
        with stage:
            transfer(stage, scheduler, 0, slots, is_load)
            if not is_load:
                written(where)
        samples.append({**stage.sample(), "scheduler_us_per_chunk": scheduler.in_tier * 1e6 / chunks})
    # Which job wrote a row last is not known; that each row came back whole is.
    if want is not None:
        firsts = {bytes(row[:64]) for row in want}
        assert all(bytes(row[:64]) in firsts for row in array), "a row came back changed"
    if rows >= LONG_JOB_CHUNKS:
        store = long_job(scheduler, chunks, slots[:LONG_JOB_CHUNKS], False)
        load = long_job(scheduler, chunks, slots[:LONG_JOB_CHUNKS], True)
        samples.append({"op": "long job", "how": kind, "store_us": store, "load_us": load})
    if chunks >= LOOKUP_KEYS:
        samples.append(lookups(scheduler, range(LOOKUP_KEYS), LookupResult.HIT))
        samples.append(lookups(scheduler, range(1 << 32, (1 << 32) + LOOKUP_KEYS), LookupResult.MISS))
    print(measure.json.dumps(samples))
    sys.stdout.flush()
    tier.shutdown()
    # Threads of the libraries may linger.
    os._exit(0)


main()
