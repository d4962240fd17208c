"""One of LMCache's L2 adapters, driven as its controllers drive it: tasks of a batch of chunks, one after the other.

Called as `batches.py DIR SIZE BATCH CHUNKS KIND`; prints a list of samples.
"""

import os
import select
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import measure
import rivals
from lmcache.v1.distributed.internal_api import L1MemoryDesc
from lmcache.v1.distributed.l2_adapters import config as configs
from lmcache.v1.distributed.l2_adapters import create_l2_adapter

PLUGINS = {"native_plugin": ("kvtier", "Connector"), "plugin": ("kvtier.lmcache", "KvtierL2Adapter")}


def adapter_of(kind, directory, size, chunks, arena):
    if kind not in PLUGINS:
        return rivals.adapter_of(kind, directory, size, chunks, arena)
    module, name = PLUGINS[kind]
    # Room for all: what is measured is moving, as with the others, who have no cap.
    tier = {"type": "file", "path": directory, "bytes": 2 * size * (chunks + 16), "free_min": 0}
    spec = {"type": kind, "module_path": module, "class_name": name, "adapter_params": {"tiers": [tier]}}
    config = configs.get_l2_adapter_config_class(kind).from_dict(spec)
    return create_l2_adapter(config, l1_memory_desc=arena)


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
    keys = lambda numbers: [rivals.key(n) for n in numbers]

    def stored(task):
        result = adapter.pop_completed_store_tasks().get(task)
        assert result is None or result.is_successful(), "a store failed"
        return result is not None

    def loaded(task):
        bits = adapter.query_load_result(task)
        assert bits is None or bits.popcount() > 0, "a load failed"
        return bits is not None

    stages = []
    for op, submit, fd, finished in [
        ("store", adapter.submit_store_task, adapter.get_store_event_fd(), stored),
        ("load", adapter.submit_load_task, adapter.get_load_event_fd(), loaded),
    ]:
        stage = measure.Stage(op, kind, size, chunks)
        with stage:
            busy = one_by_one(stage, batch, lambda n: submit(keys(n), slots[: len(n)]), fd, finished)
        stages.append((stage, busy))
    lines = [{**stage.sample(), "python_us_per_chunk": busy * 1e6 / stage.chunks} for stage, busy in stages]
    print(measure.json.dumps(lines))
    sys.stdout.flush()
    adapter.close()


main()
