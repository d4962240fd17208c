"""Chunks written to a bucket and read from it by LMCache's own S3 adapter (aws-crt), so that its objects and ours are proven to be the same.

`lmcache_bucket.py write|read HOST:PORT COUNT BYTES`: chunk n has the key of n, and bytes that follow from n. `read` fails unless every chunk is
found and every byte is right.
"""

import os
import select
import sys

import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import config as configs
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj


def key(n):
    return ObjectKey(chunk_hash=bytes([n]) * 32, model_name="org/model", kv_rank=n << 24 | 1, object_group_id=n % 3)


def content(n, length):
    at = torch.arange(length, dtype=torch.int64)
    return ((at * 7 + at // 251 + n * 13) % 256).to(torch.uint8)


def object_of(data):
    shape = torch.Size([len(data)])
    meta = MemoryObjMetadata(
        shape=shape, dtype=torch.uint8, address=0, phy_size=len(data), ref_count=1, fmt=MemoryFormat.BINARY
    )
    meta.shapes, meta.dtypes = [shape], [torch.uint8]
    return TensorMemoryObj(data, meta, None)


def wait(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(20_000), "the adapter gave no sign within 20 s"
    os.eventfd_read(fd)


def main():
    mode, endpoint, count, length = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    spec = {
        "type": "s3",
        "s3_endpoint": endpoint,
        "s3_region": "us-east-1",
        "s3_num_io_threads": 4,
        "s3_prefer_http2": False,
        "disable_tls": True,
        "aws_access_key_id": "AKIDTEST",
        "aws_secret_access_key": "secret/test+key",
    }
    adapter = create_l2_adapter(configs.get_l2_adapter_config_class("s3").from_dict(spec))
    for n in range(count):
        if mode == "write":
            adapter.submit_store_task([key(n)], [object_of(content(n, length))])
            wait(adapter.get_store_event_fd())
            assert all(result.is_successful() for result in adapter.pop_completed_store_tasks().values()), n
            continue
        into = object_of(torch.zeros(length, dtype=torch.uint8))
        task = adapter.submit_load_task([key(n)], [into])
        wait(adapter.get_load_event_fd())
        bits = adapter.query_load_result(task)
        assert bits is not None and bits.test(0), f"chunk {n} is not found"
        assert torch.equal(into.raw_data, content(n, length)), f"chunk {n} has other bytes"
    adapter.close()
    print(f"{mode} {count}", flush=True)
    # Its threads are in no hurry.
    os._exit(0)


main()
