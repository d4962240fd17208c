"""Helpers for tests of the storage plugin: engines over it, and LMCache's own backend with host memory instead of GPU memory."""

import asyncio
import ctypes
import os
import types
from unittest import mock

import torch
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_allocators.gpu_memory_allocator import GPUMemoryAllocator
from lmcache.v1.storage_backend import gds_backend
from test_remote import CHUNK, HEAD, HEADS, LAYERS, Engine

PLACE = "storage_plugin.kvtier"
CHUNK_BYTES = 2 * LAYERS * CHUNK * HEADS * HEAD * 2


class Gds(Engine):
    """An engine of LMCache's over the storage plugin, as its configuration file names it."""

    module_path, class_name = "kvtier.lmcache", "KvtierGdsBackend"

    def engine(self, extra=None, **settings):
        plugin = {f"{PLACE}.module_path": self.module_path, f"{PLACE}.class_name": self.class_name}
        plugin |= {f"{PLACE}.gds_path": self.dir, f"{PLACE}.bytes": "64MiB"}
        plugin |= extra or {}
        wanted = {"local_cpu": False, "max_local_cpu_size": 0.05, "storage_plugins": ["kvtier"]}
        # On a busy machine a load takes longer than LMCache's 10 s.
        wanted |= {"blocking_timeout_secs": 600, **settings}
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK, extra_config={name: value for name, value in plugin.items() if value is not None}, **wanted
        )
        return self.start(config)

    def backend(self, engine):
        return engine.storage_manager.storage_backends["kvtier"]

    def counter(self, engine, name):
        return self.backend(engine).status()[2][name]

    def keys(self, engine, tokens):
        return [key for _, _, key in engine.token_database.process_tokens(tokens)]

    def pinned(self, engine):
        """How many objects of LMCache's pinned memory are in use."""
        return engine.storage_manager.allocator_backend.memory_allocator.pin_allocator.num_active_allocations


class Registered(GPUMemoryAllocator):
    """Host memory with the one field that LMCache's backend asks of memory that it registered."""

    def __init__(self, size):
        super().__init__(size, align_bytes=4096)
        self.base_pointer = self.tensor.data_ptr()


def _copied(into, source, length, _):
    ctypes.memmove(into, source, length.value)
    return 0


def theirs(directory, engine):
    """LMCache's own backend on a directory; without a GPU all of it but the GPU, in whose place there is host memory."""
    config = types.SimpleNamespace(
        gds_path=directory,
        gds_path_sharding="by_gpu",
        use_gds=False,
        gds_backend="cufile",
        gds_buffer_size=8,
        extra_config=None,
        get_extra_config_value=lambda _, default: default,
    )
    copied = gds_backend._load_gpu_memcpy if torch.cuda.is_available() else lambda: _copied
    with (
        mock.patch.object(gds_backend, "_load_gpu_memcpy", copied),
        mock.patch.object(gds_backend, "CuFileMemoryAllocator", Registered),
    ):
        return gds_backend.GdsBackend(config, engine.metadata, engine.storage_manager.loop, "cuda:0")


def files(directory):
    """The data files of the layout."""
    found = [os.path.join(at, name) for at, _, names in os.walk(directory) for name in names]
    return sorted(path for path in found if path.endswith(".kvcache.safetensors"))


def header_of(tokens, axes=None, fmt=None):
    """As LMCache writes it."""
    shape = axes or (2, LAYERS, tokens, HEADS * HEAD)
    tensor = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    return gds_backend.pack_metadata(tensor, fmt or gds_backend.MemoryFormat.KV_2LTD, lmcache_version="1")


async def all_of(tasks):
    """Waits for tasks of LMCache's loop."""
    await asyncio.gather(*tasks)
