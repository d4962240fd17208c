"""Tests that run over the stand-in for the driver's library; `test_gds.py` starts them. Everything above the memory objects is LMCache's code."""

import asyncio
import ctypes
import gc
import pathlib
import sys
import threading

sys.path.insert(1, str(pathlib.Path(__file__).parents[1]))

import device
import torch
from gds import CHUNK_BYTES, PLACE, Gds, all_of, files, header_of, theirs
from kvtier.lmcache import KvtierGdsBackend
from lmcache.v1.memory_allocators.gpu_memory_allocator import GPUMemoryAllocator
from lmcache.v1.memory_allocators.tensor_memory_allocator import TensorMemoryAllocator
from lmcache.v1.memory_management import TensorMemoryObj
from test_remote import CHUNK, of_tokens

STREAM = ctypes.c_size_t(0)


class OnDevice:
    """As much of a tensor on the GPU as LMCache uses on the way: copies, which the driver makes. The CPU cannot touch its memory."""

    def __init__(self, obj):
        self.at, self.bytes = ctypes.c_uint64(obj.data_ptr), ctypes.c_size_t(obj.get_size())
        self.shape, self.dtype = obj.get_shape(), obj.get_dtype()

    def copy_(self, source, non_blocking=False):
        source = source.contiguous()
        device.cuda("cuMemcpyHtoDAsync_v2", self.at, ctypes.c_void_p(source.data_ptr()), self.bytes, STREAM)
        device.cuda("cuStreamSynchronize", STREAM)

    def clone(self):
        into = torch.empty(self.shape, dtype=self.dtype)
        device.cuda("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(into.data_ptr()), self.at, self.bytes, STREAM)
        device.cuda("cuStreamSynchronize", STREAM)
        return into


class DeviceObj(TensorMemoryObj):
    """LMCache's object over memory of the stand-in."""

    @property
    def tensor(self):
        return OnDevice(self)


class DeviceAllocator(GPUMemoryAllocator):
    """LMCache's allocator over memory of the stand-in."""

    def __init__(self, size):
        self.memory = device.Memory(size)
        raw = (ctypes.c_ubyte * size).from_address(self.memory.at.value)
        self.tensor = torch.frombuffer(raw, dtype=torch.uint8)
        self.allocator = TensorMemoryAllocator(self.tensor, align_bytes=4096)
        self.device_mem_lock = threading.Lock()

    def allocate(self, *what, **more):
        obj = super().allocate(*what, **more)
        if obj is not None:
            obj.__class__ = DeviceObj
        return obj

    def close(self):
        self.memory.free()


class DeviceBackend(KvtierGdsBackend):
    def initialize_allocator(self, config, metadata):
        return DeviceAllocator(config.gds_buffer_size << 20) if config.gds_buffer_size else None


class OnGpu(Gds):
    module_path, class_name = "gds_device", "DeviceBackend"

    def setUp(self):
        super().setUp()
        self.context = device.Gpu()
        self.addCleanup(self.gone)

    def gone(self):
        self.engine_now = self.gpu = self.stop = None
        gc.collect()
        self.context.close()

    def saved(self, engine, chunks=3):
        tokens = list(range(chunks * CHUNK))
        self.stored(engine, tokens, len(tokens))
        return tokens

    def on_device(self, engine):
        """How many objects on the GPU are in use."""
        return self.backend(engine).get_memory_allocator().allocator.num_active_allocations

    def watched(self):
        """Notes the kinds of objects that come back from loads."""
        kinds, to_gpu = set(), self.gpu.to_gpu
        self.gpu.to_gpu = lambda obj, *rest, **more: (kinds.add(type(obj)), to_gpu(obj, *rest, **more))
        return kinds

    def test_loads_go_into_memory_of_the_gpu(self):
        self.engine_now = engine = self.engine(gds_buffer_size=1)
        tokens, kinds = self.saved(engine), self.watched()
        self.whole(tokens, len(tokens))
        self.assertEqual(kinds, {DeviceObj})
        self.assertEqual(self.counter(engine, "uploaded_bytes"), 3 * CHUNK_BYTES)
        self.assertEqual(self.counter(engine, "fetched_bytes"), 0, "saves came from LMCache's pinned memory")
        self.assertEqual((self.on_device(engine), self.pinned(engine)), (0, 0))
        self.stop()

    def test_saves_take_memory_of_the_gpu(self):
        self.engine_now = engine = self.engine({f"{PLACE}.save_from": "gpu"}, gds_buffer_size=1)
        tokens = self.saved(engine)
        self.assertEqual(self.counter(engine, "fetched_bytes"), 3 * CHUNK_BYTES)
        self.assertEqual({pathlib.Path(path).read_bytes()[:4096] for path in files(self.dir)}, {header_of(CHUNK)})
        self.whole(tokens, len(tokens))
        self.assertEqual((self.on_device(engine), self.pinned(engine)), (0, 0))
        self.stop()

    def test_a_tier_that_encodes_takes_the_type_from_lmcaches_keys(self):
        tier = {"type": "gds", "path": self.dir, "bytes": "64MiB", "free_min": 0, "encode": ["bf16-split"]}
        extra = {f"{PLACE}.gds_path": None, f"{PLACE}.bytes": None, f"{PLACE}.tiers": [tier], f"{PLACE}.save_from": "gpu"}
        self.engine_now = engine = self.engine(extra, gds_buffer_size=1)
        tokens, kinds = self.saved(engine), self.watched()
        self.assertEqual((self.counter(engine, "encoded_chunks"), self.counter(engine, "fetched_bytes")), (3, 3 * CHUNK_BYTES))
        self.assertLess(self.counter(engine, "encoded_stored_bytes"), 0.95 * 3 * CHUNK_BYTES)
        self.whole(tokens, len(tokens))
        self.assertEqual(kinds, {DeviceObj})
        self.assertEqual((self.counter(engine, "decoded_chunks"), self.counter(engine, "uploaded_bytes")), (3, 3 * CHUNK_BYTES))
        self.stop()

    def test_lmcache_and_kvtier_read_each_others_files_saved_from_the_gpu(self):
        self.engine_now = engine = self.engine({f"{PLACE}.save_from": "gpu"}, gds_buffer_size=1)
        tokens = self.saved(engine)
        own = theirs(self.dir, engine)
        self.addCleanup(own.close)
        for n, key in enumerate(self.keys(engine, tokens)):
            self.assertTrue(own.contains(key))
            obj = own.get_blocking(key)
            self.assertTrue(torch.equal(obj.tensor, of_tokens(n * CHUNK, (n + 1) * CHUNK)))
            obj.ref_count_down()
        [key] = self.keys(engine, list(range(9_000, 9_000 + CHUNK)))
        obj = own.allocate(engine.metadata.get_shapes(), engine.metadata.get_dtypes())
        obj.tensor.copy_(of_tokens(0, CHUNK))
        own.submit_put_task(key, obj).result(60)
        asyncio.run_coroutine_threadsafe(all_of(own.save_metadata_tasks), own.loop).result(60)
        obj.ref_count_down()
        found = self.backend(engine).get_blocking(key)
        self.assertIs(type(found), DeviceObj)
        self.assertTrue(torch.equal(found.tensor.clone(), of_tokens(0, CHUNK)))
        found.ref_count_down()
        self.stop()

    def test_without_free_gpu_memory_loads_go_into_pinned_memory(self):
        self.engine_now = engine = self.engine(gds_buffer_size=1)
        chunks = (1 << 20) // CHUNK_BYTES + 2
        tokens, kinds = self.saved(engine, chunks), self.watched()
        self.whole(tokens, len(tokens))
        self.assertEqual(kinds, {DeviceObj, TensorMemoryObj})
        self.assertEqual((self.on_device(engine), self.pinned(engine)), (0, 0))
        self.stop()
