"""LMCache's CacheGen on the CPU, for lmcache_cachegen.rs: one line of orders on standard input, one line of answers.

raw PATH: takes bfloat16 values in the order KV_2LTD of "test_model". encode PATH: encodes them, and writes the container when it is not "-".
decode PATH: decodes the container of the last encode, and writes the values when it is not "-". Both answer with the CPU seconds of this
process, all its threads together.
"""

import os
import sys
import time
import types
from pathlib import Path

import torch
from lmcache.v1.memory_management import BytesBufferMemoryObj, MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.storage_backend.naive_serde import CreateSerde

LAYERS, HEADS, HEAD_SIZE, TOKENS = 32, 2, 128, 256


def tensor_object(tensor):
    metadata = MemoryObjMetadata(
        shape=tensor.shape,
        dtype=tensor.dtype,
        address=-1,
        phy_size=tensor.numel() * tensor.element_size(),
        ref_count=1,
        fmt=MemoryFormat.KV_2LTD,
    )
    return TensorMemoryObj(raw_data=tensor, metadata=metadata, parent_allocator=None)


class Cpu:
    def __init__(self):
        # One core: threads on several would only wait for each other, since numba's code keeps Python's lock.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        torch.set_num_threads(1)
        metadata = types.SimpleNamespace(
            model_name="test_model", kv_shape=(LAYERS, 2, TOKENS, HEADS, HEAD_SIZE), kv_dtype=torch.bfloat16
        )
        self.serializer, self.deserializer = CreateSerde("cachegen", metadata, types.SimpleNamespace(chunk_size=TOKENS))

    def raw(self, path):
        tensor = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.bfloat16)
        self.source = tensor_object(tensor.view(2, LAYERS, TOKENS, HEADS * HEAD_SIZE))
        return 0

    def encode(self, path):
        began = time.process_time()
        self.stored = self.serializer.serialize(self.source)
        seconds = time.process_time() - began
        if path != "-":
            Path(path).write_bytes(bytes(self.stored.byte_array))
        return seconds

    def decode(self, path):
        began = time.process_time()
        found = self.deserializer.deserialize(BytesBufferMemoryObj(bytes(self.stored.byte_array)))
        seconds = time.process_time() - began
        if path != "-":
            Path(path).write_bytes(found.raw_data.contiguous().view(torch.uint8).numpy().tobytes())
        return seconds


cpu = Cpu()
for line in sys.stdin:
    order, path = line.split()
    print("answer", getattr(cpu, order)(path), flush=True)
