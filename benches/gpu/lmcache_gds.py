"""Compares LMCache's GDS backend with ``kvtier.lmcache.KvtierGdsBackend``, on a machine with a GPU.

Usage: ``python3 lmcache_gds.py DIRECTORY [CHUNKS [ROUNDS]]``. It needs LMCache 0.5.6, torch and the kvtier wheel. Each backend stores CHUNKS
(24) chunks of 32 MiB, and loads them into GPU memory after they left the page cache, in batches of eight. Every round measures all backends; the
medians are printed. LMCache's backend runs with cuFile (``use_gds: true``) and without it. All bytes are compared."""

import asyncio
import os
import resource
import shutil
import statistics
import sys
import time
import uuid

import torch
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector import GPUConnectorInterface
from lmcache.v1.metadata import LMCacheMetadata

DIRECTORY = sys.argv[1]
CHUNKS, ROUNDS = (int(sys.argv[n]) if len(sys.argv) > n else default for n, default in ((2, 24), (3, 3)))
LAYERS, TOKENS, HEADS, HEAD = 32, 256, 8, 128
CHUNK_BYTES = 2 * LAYERS * TOKENS * HEADS * HEAD * 2
BATCH = 8
BUFFER_MIB = 1024
PLUGIN = "storage_plugin.kvtier"


class NoModel(GPUConnectorInterface):
    """An engine without a model: the backends are driven directly."""

    def get_shape(self, num_tokens):
        return torch.Size([2, LAYERS, num_tokens, HEADS * HEAD])

    def to_gpu(self, memory_obj, start, end, **_):
        raise NotImplementedError

    from_gpu = batched_to_gpu = batched_from_gpu = to_gpu


def lmcache_settings(use_gds):
    return {"gds_path": directory(), "use_gds": use_gds}


def kvtier_settings(**more):
    plugin = {f"{PLUGIN}.module_path": "kvtier.lmcache", f"{PLUGIN}.class_name": "KvtierGdsBackend"}
    plugin |= {f"{PLUGIN}.gds_path": directory(), f"{PLUGIN}.bytes": "64GiB"}
    return {"storage_plugins": ["kvtier"], "extra_config": plugin | {f"{PLUGIN}.{k}": v for k, v in more.items()}}


BACKENDS = {
    "LMCache, cuFile": lambda: lmcache_settings(True),
    "LMCache, without cuFile": lambda: lmcache_settings(False),
    "kvtier": lambda: kvtier_settings(),
    "kvtier, saves from GPU memory": lambda: kvtier_settings(save_from="gpu"),
}


def directory():
    return os.path.join(DIRECTORY, "lmcache-gds")


def main():
    print("| backend | GPU to file, MB/s | file to GPU, MB/s | CPU storing, s/GB | CPU loading, s/GB |\n|---|---|---|---|---|")
    found = {name: [measure_or_reason(settings)] for name, settings in BACKENDS.items()}
    for _ in range(ROUNDS - 1):
        [rows.append(measure_once(BACKENDS[name]())) for name, rows in found.items() if not isinstance(rows[0], str)]
    for name, rows in found.items():
        if isinstance(rows[0], str):
            print(f"| {name} | - | - | - | - | {rows[0]}")
        else:
            out, into, out_cpu, in_cpu = (statistics.median(cell) for cell in zip(*rows))
            print(f"| {name} | {out:.0f} | {into:.0f} | {out_cpu:.3f} | {in_cpu:.3f} |")


def measure_or_reason(settings):
    """Runs the first round. A backend that does not work here becomes a row with the reason."""
    try:
        return measure_once(settings())
    except Exception as e:
        return f"not measured: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"


def measure_once(settings):
    """MB/s of stores and loads, and CPU seconds per GB of each."""
    os.makedirs(directory(), exist_ok=True)
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=TOKENS, local_cpu=False, max_local_cpu_size=1.5, gds_buffer_size=BUFFER_MIB, **settings
    )
    axes = (LAYERS, 2, TOKENS, HEADS, HEAD)
    metadata = LMCacheMetadata("org/model", 1, 1, 0, 0, torch.bfloat16, axes, chunk_size=TOKENS)
    name = str(uuid.uuid4())
    engine = LMCacheEngineBuilder.get_or_create(name, config, metadata, NoModel(), lambda *_: None, lambda *_: None)
    try:
        engine.post_init()
        return measure(engine)
    finally:
        LMCacheEngineBuilder.destroy(name)
        shutil.rmtree(directory(), ignore_errors=True)


def measure(engine):
    manager = engine.storage_manager
    backend = next(backend for at, backend in manager.storage_backends.items() if at != "LocalCPUBackend")
    keys = [key for _, _, key in engine.token_database.process_tokens(list(range((CHUNKS + 1) * TOKENS)))]
    warm, keys = keys[:1], keys[1:]
    torch.manual_seed(1)
    content = [torch.randn(2, LAYERS, TOKENS, HEADS * HEAD, device="cuda").to(torch.bfloat16) for _ in range(CHUNKS)]
    store(manager, backend, warm, content[:1])
    load(backend, warm, content[:1])
    stored = timed(lambda: store_all(manager, backend, keys, content))
    drop_caches()
    loaded = timed(lambda: [load(backend, keys[at : at + BATCH], None) for at in batches()])
    [load(backend, keys[at : at + BATCH], content[at : at + BATCH]) for at in batches()]
    return stored[0], loaded[0], stored[1], loaded[1]


def store_all(manager, backend, keys, content):
    """Stores all batches and syncs, because a backend may write through the page cache."""
    [store(manager, backend, keys[at : at + BATCH], content[at : at + BATCH]) for at in batches()]
    os.sync()


def batches():
    return range(0, CHUNKS, BATCH)


def timed(work):
    torch.cuda.synchronize()
    begun, cpu = time.monotonic(), cpu_seconds()
    work()
    torch.cuda.synchronize()
    gb = CHUNKS * CHUNK_BYTES / 1e9
    return gb * 1e3 / (time.monotonic() - begun), (cpu_seconds() - cpu) / gb


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def store(manager, backend, keys, content):
    """Stores as the engine does: allocates objects, copies into them, and waits until all files are written."""
    objs = [manager.allocate(torch.Size(each.shape), each.dtype) for each in content]
    [obj.tensor.copy_(each) for obj, each in zip(objs, content)]
    torch.cuda.synchronize()
    manager.batched_put(keys, objs)
    while any(backend.exists_in_put_tasks(key) for key in keys):
        time.sleep(0.0005)
    tasks = getattr(backend, "save_metadata_tasks", None)
    if tasks:
        asyncio.run_coroutine_threadsafe(all_of(list(tasks)), backend.loop).result()


async def all_of(tasks):
    await asyncio.gather(*tasks)


def load(backend, keys, content):
    objs = backend.batched_get_blocking(keys)
    assert len(objs) == len(keys) and None not in objs, "a chunk is missing"
    for obj, expected in zip(objs, content or []):
        assert obj.tensor.is_cuda and torch.equal(obj.tensor, expected), "wrong bytes"
    [obj.ref_count_down() for obj in objs]


def drop_caches():
    for at, _, names in os.walk(directory()):
        for name in names:
            with open(os.path.join(at, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
