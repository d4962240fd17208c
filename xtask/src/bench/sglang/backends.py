"""One of SGLang's storage backends, through its real class, driven as SGLang's cache controller drives it: batches of pages between a host pool and the
medium, one after the other.

Called as `backends.py DIR SIZE BATCH PAGES KIND`; prints a list of samples. The size of a page names the model.
"""

import atexit
import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import measure
import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

TOKENS = 64
LAYOUT = "page_first_direct"
# Heads, dimensions and layers by bytes of a page of 64 tokens: a small model and an 8B model with grouped queries. The third is an MLA model.
HEADS = {768 << 10: (2, 64, 24), 8 << 20: (8, 128, 32)}
MLA = {4_497_408: (512, 64, 61)}
# Pages of one lookup, and how often it is repeated.
LOOKUP_PAGES = 128
# The longest that a backend may take to write its files.
LIMIT_S = 60
LOOKUPS = 200


def host_pool(size, pages):
    """SGLang's host pool for this model, with content that differs from page to page."""
    common = dict(host_to_device_ratio=2.0, host_size=0, page_size=TOKENS, layout=LAYOUT, pin_memory=False, device="cpu")
    common.update(device_capacity_tokens=TOKENS, start_layer=0, host_token_capacity=pages * TOKENS)
    if size in MLA:
        rank, rope, layers = MLA[size]
        device = MLATokenToKVPool(TOKENS, TOKENS, torch.bfloat16, rank, rope, layers, "cpu", False)
        pool = MLATokenToKVPoolHost(device._mla_buffer_info(), target_layer_num=layers, end_layer=layers, **common)
    elif size in HEADS:
        heads, dim, layers = HEADS[size]
        # The device's pool is only described: nothing is copied to it.
        one = tuple(torch.zeros(TOKENS, heads, dim, dtype=torch.bfloat16) for _ in range(layers))
        table = torch.tensor([tensor.data_ptr() for tensor in one], dtype=torch.int64)
        buffers = KVBuffers(k=one, v=one, k_data_ptrs=table, v_data_ptrs=table, layout=KVBufferLayout.NHD)
        shape = dict(page_size=TOKENS, head_num=heads, head_dim=dim, v_head_dim=dim)
        info = MHABufferInfo(buffers=buffers, dtype=torch.bfloat16, device=torch.device("cpu"), **shape)
        pool = MHATokenToKVPoolHost(info, end_layer=layers, **common)
    else:
        raise SystemExit(f"no model has pages of {size} bytes; these are: {', '.join(map(str, [*HEADS, *MLA]))}")
    words = pool.kv_buffer.view(-1).view(torch.int64)
    words.copy_(torch.arange(words.numel()) * 0x9E3779B97F4A7C1)
    return pool


def config(size, extra):
    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=size in MLA,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="bench/model",
        extra_config=extra,
    )


def parameters(kind, directory, size, pages):
    """The backend's name, and its `extra_config`. All have space for everything."""
    if kind.startswith("kvtier"):
        tier = {"type": "file", "path": directory, "bytes": 2 * size * pages + (256 << 20), "free_min": 0}
        own = {"backend_name": "kvtier", "module_path": "kvtier.sglang", "class_name": "KvtierHiCache"}
        return "dynamic", {**own, "interface_v1": 1, "tiers": [tier]}
    if kind == "file":
        os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = directory
        return "file", {}
    if kind == "nixl":
        os.environ["SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"] = directory
        return "nixl", {"plugin": {"posix": {"active": True, "use_uring": "true"}}, "use_direct_io": True, "l3_cleaner_enabled": False}
    if kind == "mooncake":
        address = f"127.0.0.1:{mooncake_master()}"
        store = {"master_server_address": address, "protocol": "tcp", "local_hostname": "127.0.0.1"}
        # Its memory has a quarter of the pages: the rest comes from its files.
        memory = max(size * pages // 4, 256 << 20)
        return "mooncake", {**store, "global_segment_size": memory, "enable_ssd_offload": True, "ssd_offload_path": directory}
    raise SystemExit(f"no backend of the name {kind}")


def mooncake_master():
    """Starts Mooncake's master, which ends with this process. Returns its port."""
    port, metrics = free_port(), free_port()
    words = ["mooncake_master", f"--rpc_port={port}", f"--metrics_port={metrics}", "--enable_offload=true"]
    # The command starts the server as a child of its own.
    master = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    atexit.register(os.killpg, master.pid, signal.SIGKILL)
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return port
        time.sleep(0.1)
    raise SystemExit("mooncake_master does not answer")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Controller:
    """Moves batches of pages as `HiCacheController` does with this backend."""

    def __init__(self, backend, pool, is_zero_copy):
        self.backend, self.pool, self.is_zero_copy = backend, pool, is_zero_copy

    def set(self, keys, rows):
        if self.is_zero_copy:
            return all(self.backend.batch_set_v1(keys, rows))
        pages = [self.pool.get_data_page(row) for row in rows[::TOKENS].tolist()]
        return self.backend.batch_set(keys, pages)

    def get(self, keys, rows):
        if self.is_zero_copy:
            return all(self.backend.batch_get_v1(keys, rows))
        pages = self.backend.batch_get(keys, [self.pool.get_dummy_flat_data_page() for _ in keys])
        for row, page in zip(rows[::TOKENS].tolist(), pages):
            if page is None:
                return False
            self.pool.set_from_flat_data_page(row, page)
        return True


def key(number):
    return hashlib.sha256(number.to_bytes(8, "little")).hexdigest()


def stored(directory):
    """The bytes of all files."""
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(directory) for name in names)


def written(directory, expected):
    """Everything is on the device. Mooncake writes its files in the background."""
    until = time.monotonic() + LIMIT_S
    while stored(directory) < expected and time.monotonic() < until:
        time.sleep(0.01)
    descriptor = os.open(directory, os.O_RDONLY)
    measure.ctypes.CDLL(None).syncfs(descriptor)
    os.close(descriptor)


def forget_pages():
    """The page cache holds nothing that is read next. Returns whether that was allowed."""
    try:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("1")
    except OSError:
        return False
    return True


def transfer(stage, move, batch):
    """Moves all pages in batches through the same rows. Mooncake refuses pages while its memory is full: they are tried again."""
    rows = torch.arange(batch * TOKENS)
    for numbers in measure.batches(stage.chunks, batch):
        began = time.monotonic()
        while not move([key(n) for n in numbers], rows[: len(numbers) * TOKENS]):
            is_refused = stage.how == "mooncake" and stage.op == "set" and time.monotonic() - began < LIMIT_S
            assert is_refused, f"a {stage.op} failed"
            time.sleep(0.01)
        stage.seconds.append(time.monotonic() - began)


def lookups(backend, first, count, expected):
    """Microseconds of a lookup of one batch, the median of many."""
    keys, seconds = [key(first + n) for n in range(count)], []
    for _ in range(LOOKUPS):
        began = time.perf_counter()
        found = backend.batch_exists(keys)
        seconds.append(time.perf_counter() - began)
        assert found == expected, f"{found} of {expected} pages are found"
    how = "present" if expected else "absent"
    return {"op": "exists", "how": how, "pages": count, "us": sorted(seconds)[len(seconds) // 2] * 1e6}


def main():
    directory, size, batch, pages, kind = measure.arguments()
    # SGLang's pools of this layout need a page for each layer.
    pool = host_pool(size, max(batch, 64))
    name, extra = parameters(kind, directory, size, pages)
    backend = StorageBackendFactory.create_backend(name, config(size, extra), pool)
    backend.register_mem_pool_host(pool)
    backend.on_host_pools_registered()
    controller, samples = Controller(backend, pool, kind != "file"), []
    before = pool.get_data_page(0).clone()
    for op, move in (("set", controller.set), ("get", controller.get), ("get warm", controller.get)):
        is_cold = op != "get" or forget_pages()
        stage = measure.Stage(op if is_cold else "get warm", kind, size, pages)
        with stage:
            transfer(stage, move, batch)
            if op == "set":
                written(directory, size * pages)
        samples.append(stage.sample())
    # The same row held the first page of each batch, and all have the same content.
    assert torch.equal(before.view(torch.uint8), pool.get_data_page(0).view(torch.uint8)), "a page came back changed"
    count = min(LOOKUP_PAGES, pages)
    samples.append(lookups(backend, 0, count, count))
    samples.append(lookups(backend, 1 << 40, count, 0))
    print(measure.json.dumps(samples))
    sys.stdout.flush()
    if hasattr(backend, "close"):
        backend.close()
    atexit._run_exitfuncs()
    # Threads of the libraries may linger.
    os._exit(0)


main()
