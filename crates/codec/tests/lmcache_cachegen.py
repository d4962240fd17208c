"""LMCache's CacheGen and fp8 serdes on the CPU, for lmcache_cachegen.rs.

encode DTYPE DIR: DIR/raw (KV_2LTD of "test_model") becomes DIR/theirs, and decoded DIR/their_values.
decode DTYPE DIR: DIR/ours becomes DIR/values.
cast DTYPE DIR: DIR/raw becomes DIR/FP8 and decoded DIR/FP8.values, for both types of fp8.
"""

import sys
import types
from pathlib import Path

import torch
from lmcache.v1.distributed.serde.fp8 import (
    Fp8QuantizationDeserializer,
    Fp8QuantizationSerializer,
)
from lmcache.v1.memory_management import (
    BytesBufferMemoryObj,
    MemoryFormat,
    MemoryObjMetadata,
    TensorMemoryObj,
)
from lmcache.v1.storage_backend.naive_serde import CreateSerde

LAYERS, HEADS, HEAD_SIZE = 32, 2, 10


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


def raw_bytes(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def serde(dtype):
    metadata = types.SimpleNamespace(
        model_name="test_model", kv_shape=(LAYERS, 2, 1024, HEADS, HEAD_SIZE), kv_dtype=dtype
    )
    return CreateSerde("cachegen", metadata, types.SimpleNamespace(chunk_size=1024))


def read_raw(directory, dtype):
    raw = bytearray((directory / "raw").read_bytes())
    return torch.frombuffer(raw, dtype=dtype).view(2, LAYERS, -1, HEADS * HEAD_SIZE)


def decode(directory, dtype, stored, values):
    _, deserializer = serde(dtype)
    found = deserializer.deserialize(BytesBufferMemoryObj((directory / stored).read_bytes()))
    (directory / values).write_bytes(raw_bytes(found.raw_data))


def encode(directory, dtype):
    serializer, _ = serde(dtype)
    stored = serializer.serialize(tensor_object(read_raw(directory, dtype)))
    (directory / "theirs").write_bytes(bytes(stored.byte_array))
    decode(directory, dtype, "theirs", "their_values")


def cast(directory, dtype):
    raw = read_raw(directory, dtype).flatten()
    for name in ["float8_e4m3fn", "float8_e5m2"]:
        fp8 = getattr(torch, name)
        source = types.SimpleNamespace(tensor=raw)
        stored = types.SimpleNamespace(tensor=torch.zeros(raw.numel(), dtype=torch.uint8))
        values = types.SimpleNamespace(tensor=torch.zeros_like(raw))
        Fp8QuantizationSerializer(fp8).serialize(source, stored, None)
        Fp8QuantizationDeserializer(fp8).deserialize(stored, values, None)
        (directory / name).write_bytes(raw_bytes(stored.tensor))
        (directory / (name + ".values")).write_bytes(raw_bytes(values.tensor))


mode, dtype, directory = sys.argv[1], getattr(torch, sys.argv[2]), Path(sys.argv[3])
if mode == "encode":
    encode(directory, dtype)
elif mode == "decode":
    decode(directory, dtype, "ours", "values")
else:
    cast(directory, dtype)
print(mode, "done")
