"""LMCache's own L2 adapters, driven through the interface its storage manager uses: a window of single-chunk tasks."""

import os
import select
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import measure
import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L1MemoryDesc
from lmcache.v1.distributed.l2_adapters import create_l2_adapter_from_registry
from lmcache.v1.distributed.l2_adapters.config import get_type_name_for_config
from lmcache.v1.distributed.l2_adapters import config as configs
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj


def adapter_of(kind, directory, size, chunks, arena):
    if kind == "raw_block":
        path = os.path.join(directory, "device")
        meta, slot = 16 << 20, size + 4096
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, meta + slot * (chunks + 8))
        spec = {
            "type": kind,
            "device_path": path,
            "slot_bytes": slot,
            "meta_total_bytes": meta,
            "io_engine": "io_uring",
            "num_store_workers": 4,
        }
    else:
        spec = {"type": kind, "base_path": directory, "use_odirect": True}
    config = configs.get_l2_adapter_config_class(kind).from_dict(spec)
    assert get_type_name_for_config(config) == kind
    return create_l2_adapter_from_registry(config, l1_memory_desc=arena)


def slots_of(memory, size, count):
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    slots = []
    for n in range(count):
        shape = torch.Size([size])
        meta = MemoryObjMetadata(
            shape=shape, dtype=torch.uint8, address=n * size, phy_size=size, ref_count=1, fmt=MemoryFormat.BINARY
        )
        meta.shapes, meta.dtypes = [shape], [torch.uint8]
        slots.append(TensorMemoryObj(whole[n * size : (n + 1) * size], meta, None))
    return slots


def key(n):
    return ObjectKey(chunk_hash=n.to_bytes(32, "big"), model_name="bench", kv_rank=0)


def window(stage, slots, submit, fd, finished):
    """Keeps one task a slot under way until every chunk was moved."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    free, running, following = list(range(len(slots))), {}, 0
    while following < stage.chunks or running:
        while free and following < stage.chunks:
            slot = free.pop()
            running[submit([key(following)], [slots[slot]])] = (slot, time.monotonic())
            following += 1
        poll.poll()
        os.eventfd_read(fd)
        for task in finished(list(running)):
            slot, began = running.pop(task)
            stage.seconds.append(time.monotonic() - began)
            free.append(slot)


def main():
    directory, size, inflight, chunks, kind = measure.arguments()
    memory = measure.arena(size, inflight)
    slots = slots_of(memory, size, inflight)
    length = size * inflight
    arena = L1MemoryDesc(measure.address(memory), length, measure.PAGE, length)
    adapter = adapter_of(kind, directory, size, chunks, arena)

    def stored(_):
        results = adapter.pop_completed_store_tasks()
        assert all(result.is_successful() for result in results.values()), "a store failed"
        return list(results)

    def loaded(running):
        results = {task: adapter.query_load_result(task) for task in running}
        done = {task: bits for task, bits in results.items() if bits is not None}
        assert all(bits.test(0) for bits in done.values()), "a load failed"
        return list(done)

    put = measure.Stage("put", kind, size, chunks)
    with put:
        window(put, slots, adapter.submit_store_task, adapter.get_store_event_fd(), stored)
    get = measure.Stage("get", kind, size, chunks)
    with get:
        window(get, slots, adapter.submit_load_task, adapter.get_load_event_fd(), loaded)
    measure.report([put, get])
    sys.stdout.flush()
    adapter.close()


if __name__ == "__main__":
    main()
