"""Chunks written and read by LMCache's own file adapters, so that its files and ours are proven to be the same.

`lmcache_files.py write DIR` fills DIR/fs, DIR/fs_native, DIR/connector and DIR/gds; `read DIR` loads the same chunks from there and compares every
byte. Chunks of a whole and of a partial length, and, for the connector, with and without its header of metadata.
"""

import asyncio
import ctypes
import os
import select
import sys
import threading

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import config as configs
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector.fs_connector import FSConnector
from lmcache.v1.storage_backend.gds_backend import GdsBackend, save_metadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

# Layers, keys and values, tokens, heads, head size.
SHAPE = (2, 2, 256, 1, 64)
TOKEN_BYTES = 2 * 2 * 64 * 2
WHOLE, PARTIAL = 256, 100


def content(seed, length):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=generator)


def object_of(data):
    shape = torch.Size([len(data)])
    meta = MemoryObjMetadata(
        shape=shape, dtype=torch.uint8, address=0, phy_size=len(data), ref_count=1, fmt=MemoryFormat.BINARY
    )
    meta.shapes, meta.dtypes = [shape], [torch.uint8]
    return TensorMemoryObj(data, meta, None)


def multi_process_chunks():
    """Key and bytes, of the multi-process adapters; the salted key cannot leave its layout and is not part of this."""
    for n, (model, group, tokens) in enumerate([("org/model", 0, WHOLE), ("org/model", 3, WHOLE), ("m", 0, PARTIAL)]):
        key = ObjectKey(chunk_hash=bytes([n] * 32), model_name=model, kv_rank=n << 24 | 1, object_group_id=group)
        yield key, content(n, tokens * TOKEN_BYTES)


def wait(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(20_000), "the adapter gave no sign within 20 s"
    os.eventfd_read(fd)


def adapter_of(kind, directory, direct):
    spec = {"type": kind, "base_path": os.path.join(directory, kind), "use_odirect": direct}
    return create_l2_adapter(configs.get_l2_adapter_config_class(kind).from_dict(spec))


def write_multi_process(kind, directory):
    # Whole chunks are a multiple of pages, partial ones are not, which direct I/O would refuse.
    adapter = adapter_of(kind, directory, False)
    for key, data in multi_process_chunks():
        adapter.submit_store_task([key], [object_of(data)])
        wait(adapter.get_store_event_fd())
        assert all(result.is_successful() for result in adapter.pop_completed_store_tasks().values()), key
    adapter.close()


def read_multi_process(kind, directory):
    adapter = adapter_of(kind, directory, False)
    for key, data in multi_process_chunks():
        into = object_of(torch.zeros_like(data))
        task = adapter.submit_load_task([key], [into])
        wait(adapter.get_load_event_fd())
        bits = adapter.query_load_result(task)
        assert bits is not None and bits.test(0), f"{kind} does not find {key}"
        assert torch.equal(into.raw_data, data), f"{kind} read other bytes for {key}"
    adapter.close()


def connector_of(directory, with_meta, loop):
    extra = {"save_chunk_meta": with_meta}
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=256, local_cpu=False, max_local_cpu_size=0.05, save_unfull_chunk=True, extra_config=extra
    )
    metadata = LMCacheMetadata(
        model_name="org/model",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.bfloat16,
        kv_shape=(SHAPE[0], SHAPE[1], SHAPE[2], SHAPE[3], SHAPE[4]),
    )
    backend = LocalCPUBackend(config, metadata, dst_device="cpu")
    base = os.path.join(directory, "connector-meta" if with_meta else "connector")
    return FSConnector(loop, backend, config, base_paths_str=base), backend


def engine_chunks(with_meta):
    sizes = [WHOLE, WHOLE, PARTIAL] if with_meta else [WHOLE, WHOLE]
    for n, tokens in enumerate(sizes):
        key = CacheEngineKey("org/model", 1, 0, 0x1A2B3C4D5E6F7788 + n, torch.bfloat16)
        yield key, tokens, content(100 + n, tokens * TOKEN_BYTES)


def connector(directory, with_meta, write):
    loop = asyncio.new_event_loop()
    fs, backend = connector_of(directory, with_meta, loop)
    for key, tokens, data in engine_chunks(with_meta):
        if write:
            shape = torch.Size([2, SHAPE[0], tokens, SHAPE[3] * SHAPE[4]])
            chunk = backend.allocate(shape, torch.bfloat16, MemoryFormat.KV_2LTD)
            memoryview(chunk.byte_array).cast("B")[:] = bytes(data.tolist())
            loop.run_until_complete(fs.put(key, chunk))
        else:
            chunk = loop.run_until_complete(fs.get(key))
            assert chunk is not None, f"the connector does not find {key.to_string()}"
            assert bytes(chunk.byte_array) == bytes(data.tolist()), f"the connector read other bytes for {key}"
        chunk.ref_count_down()


def copied(to, source, size, _):
    """What stands in for the copy between GPU and host: both are host memory here."""
    ctypes.memmove(to, source, size.value)
    return 0


def gds_backend_of(directory):
    """The GDS backend without its GPU: what it does to files, and nothing else of it."""
    backend = GdsBackend.__new__(GdsBackend)
    backend.gds_path = os.path.join(directory, "gds")
    backend.gds_paths, backend.data_suffix = [backend.gds_path], ".kvcache.safetensors"
    backend.hot_cache, backend.metadata_dirs, backend.hot_lock = {}, set(), threading.Lock()
    backend.gds_module, backend._gpu_memcpy = None, copied
    backend.use_direct_io = backend._use_noatime = False
    return backend


def write_gds(directory):
    backend = gds_backend_of(directory)
    for key, tokens, data in engine_chunks(True):
        chunk = data.view(torch.bfloat16).reshape(2, SHAPE[0], tokens, SHAPE[3] * SHAPE[4])
        path = backend._key_to_path(key)[0]
        os.makedirs(os.path.dirname(path), exist_ok=True)
        metadata = backend._save_gds(path, ".tmp12345678", chunk, MemoryFormat.KV_2LTD, None, 0)
        asyncio.run(save_metadata(path + ".metadata", ".tmp12345678", metadata))


def read_gds(directory):
    backend = gds_backend_of(directory)
    # As at its start; it finds what it did not write.
    asyncio.run(backend._scan_metadata())
    for key, tokens, data in engine_chunks(True):
        assert key in backend.hot_cache, f"the GDS backend does not find {key.to_string()}"
        found = backend.hot_cache[key]
        assert tuple(found.shape) == (2, SHAPE[0], tokens, SHAPE[3] * SHAPE[4]), found.shape
        into = torch.zeros_like(data)
        read = backend._load_gds(found.path, 4096, ctypes.c_void_p(into.data_ptr()), found.size, 0)
        assert read == len(data) and torch.equal(into, data), f"the GDS backend read other bytes for {key}"


def main():
    mode, directory = sys.argv[1:3]
    write = mode == "write"
    for kind in ["fs", "fs_native"]:
        (write_multi_process if write else read_multi_process)(kind, directory)
    for with_meta in [False, True]:
        connector(directory, with_meta, write)
    (write_gds if write else read_gds)(directory)
    print("ok")
    sys.stdout.flush()
    # Threads of the libraries may linger.
    os._exit(0)


main()
