"""One of LMCache's L2 adapters, driven as its controllers drive it: tasks of a batch of chunks, one after the other.

Called as `batches.py WHERE SIZE BATCH CHUNKS KIND`, with a directory or the address of the S3 server in memory; prints a list of samples.
"""

import os
import select
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(__file__))
import measure
import rivals
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L1MemoryDesc
from lmcache.v1.distributed.l2_adapters import config as configs
from lmcache.v1.distributed.l2_adapters import create_l2_adapter

PLUGINS = {"native_plugin": ("kvtier", "Connector"), "plugin": ("kvtier.lmcache", "KvtierL2Adapter")}
BUCKET = {"s3_region": "us-east-1", "aws_access_key_id": "AKIDBENCH", "aws_secret_access_key": "bench-secret"}


def adapter_of(kind, where, size, chunks, arena):
    is_bucket = where.startswith("http://")
    if kind not in PLUGINS and not is_bucket:
        return rivals.adapter_of(kind, where, size, chunks, arena)
    if kind not in PLUGINS:
        spec = {"type": kind, "s3_endpoint": where.removeprefix("http://"), "disable_tls": True, **BUCKET}
    else:
        module, name = PLUGINS[kind]
        # Space for all: moving is measured, as with the other rivals, which have no cap.
        tier = {"type": "file", "path": where, "bytes": 2 * size * (chunks + 16), "free_min": 0}
        if is_bucket:
            tier = {"type": "s3", "s3_endpoint": where, "bucket": "bench", "layout": "lmcache-mp", **BUCKET}
        spec = {"type": kind, "module_path": module, "class_name": name, "adapter_params": {"tiers": [tier]}}
    config = configs.get_l2_adapter_config_class(kind).from_dict(spec)
    return create_l2_adapter(config, l1_memory_desc=arena)


def python_seconds():
    """CPU time of all threads that Python runs in, ours and the adapters'."""
    total = 0
    for thread in threading.enumerate():
        with open(f"/proc/self/task/{thread.native_id}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def seconds_without_gil():
    """What of that time our module spent without the interpreter's lock."""
    module = sys.modules.get("kvtier._native")
    return module.seconds_without_gil() if module else 0.0


def one_by_one(stage, batch, submit, fd, finished):
    """Moves batch after batch. Counts besides how long Python was busy with submitting and answering."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    busy = 0.0
    for chunks in measure.batches(stage.chunks, batch):
        began = time.monotonic()
        task = submit(chunks)
        busy += time.monotonic() - began
        ended = False
        while not ended:
            poll.poll()
            at = time.monotonic()
            try:
                os.eventfd_read(fd)
            except BlockingIOError:
                pass
            ended = finished(task)
            busy += time.monotonic() - at
        stage.seconds.append(time.monotonic() - began)
    return busy


def main():
    directory, size, batch, chunks, kind = measure.arguments()
    memory = measure.arena(size, batch)
    slots = rivals.slots_of(memory, size, batch)
    arena = L1MemoryDesc(measure.address(memory), size * batch, measure.PAGE, size * batch)
    adapter = adapter_of(kind, directory, size, chunks, arena)
    # Of what was not stored before, the server derives the length from the name.
    model = f"{size}/bench" if directory.startswith("http://") else "bench"
    keys = lambda numbers: [ObjectKey(n.to_bytes(32, "big"), model, 0) for n in numbers]

    def stored(task):
        result = adapter.pop_completed_store_tasks().get(task)
        assert result is None or result.is_successful(), "a store failed"
        return result is not None

    def loaded(task):
        bits = adapter.query_load_result(task)
        assert bits is None or bits.popcount() > 0, "a load failed"
        return bits is not None

    # What comes from the server is what it will give back: stored again, it fits its checksums. Connections are there then too.
    if directory.startswith("http://"):
        warm = measure.Stage("warm", kind, size, batch)
        far = lambda numbers: keys([n + (1 << 32) for n in numbers])
        submit = lambda n: adapter.submit_load_task(far(n), slots[: len(n)])
        one_by_one(warm, batch, submit, adapter.get_load_event_fd(), loaded)
    stages = []
    for op, submit, fd, finished in [
        ("store", adapter.submit_store_task, adapter.get_store_event_fd(), stored),
        ("load", adapter.submit_load_task, adapter.get_load_event_fd(), loaded),
    ]:
        stage = measure.Stage(op, kind, size, chunks)
        before = python_seconds() - seconds_without_gil()
        with stage:
            busy = one_by_one(stage, batch, lambda n: submit(keys(n), slots[: len(n)]), fd, finished)
        stages.append((stage, busy, python_seconds() - seconds_without_gil() - before))
    per_chunk = lambda stage, seconds: seconds * 1e6 / stage.chunks
    lines = [
        {**stage.sample(), "python_us_per_chunk": per_chunk(stage, busy), "python_cpu_us_per_chunk": per_chunk(stage, cpu)}
        for stage, busy, cpu in stages
    ]
    print(measure.json.dumps(lines))
    sys.stdout.flush()
    adapter.close()
    # Threads of the libraries may linger.
    os._exit(0)


main()
