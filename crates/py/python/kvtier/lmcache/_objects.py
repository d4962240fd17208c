"""LMCache's memory objects, and the tensors that chunks are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from lmcache.utils import CacheEngineKey, LayerCacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.metadata import LMCacheMetadata

from .. import _native


@dataclass(frozen=True)
class Shape:
    """The tensor that a chunk is, as the header of its file states it."""

    axes: tuple[int, ...]
    format: str
    dtype: str


@dataclass(frozen=True)
class Group:
    """The tensor that a chunk holds for one group of layers."""

    axes: tuple[int, ...]
    dtype: torch.dtype
    token_axis: int

    def token_bytes(self) -> int:
        """Bytes of one token, whose axis counts 1."""
        return math.prod(self.axes) * self.dtype.itemsize

    def shape(self, tokens: int) -> torch.Size:
        return torch.Size([tokens if at == self.token_axis else n for at, n in enumerate(self.axes)])


class OnGpu:
    """Memory of an object on a GPU, for the native half. All work on the GPU so far comes before ours."""

    def __init__(self, obj: MemoryObj) -> None:
        self.obj = obj
        stream = 0
        if torch.cuda.is_initialized():
            # LMCache may have filled the object on a stream of its own, which nothing names here.
            torch.cuda.synchronize()
            stream = torch.cuda.current_stream().cuda_stream
        self.__cuda_array_interface__ = {
            "shape": (obj.get_size(),),
            "typestr": "|u1",
            "data": (obj.data_ptr, False),
            "version": 3,
            # 0 is torch's default stream, and means nothing here, where that is 1.
            "stream": stream or 1,
        }


def groups(key: CacheEngineKey, metadata: LMCacheMetadata, config: LMCacheEngineConfig) -> tuple[list[Group], MemoryFormat]:
    """What a chunk of this key looks like, each tensor with one token."""
    if not isinstance(key, LayerCacheEngineKey):
        fmt = MemoryFormat.KV_MLA_FMT if metadata.use_mla else MemoryFormat.KV_2LTD
        shapes = zip(metadata.get_shapes(1), metadata.get_dtypes())
        return [Group(tuple(axes), dtype, fmt.token_dim()) for axes, dtype in shapes], fmt
    _, planes, _, heads, head = metadata.kv_shape
    if metadata.use_mla:
        return [Group((1, heads * head), metadata.kv_dtype, 0)], MemoryFormat.KV_MLA_FMT
    if config.enable_blending:
        return [Group((planes, 1, heads * head), metadata.kv_dtype, 1)], MemoryFormat.KV_2TD
    return [Group((1, planes, heads * head), metadata.kv_dtype, 0)], MemoryFormat.KV_T2D


def memory(objs: Sequence[Any]) -> list[Any]:
    """Where the bytes of objects are: the driver knows which addresses are on a GPU."""
    return [OnGpu(obj) if _native.is_on_gpu(obj.data_ptr) else obj.byte_array for obj in objs]


def shape(obj: MemoryObj) -> Optional[Shape]:
    """``None`` for what is no single tensor: a header can state just one."""
    shapes, dtype = obj.metadata.shapes, obj.get_dtype()
    if dtype is None or (shapes is not None and len(shapes) > 1):
        return None
    return Shape(tuple(obj.get_shape()), obj.get_memory_format().name, str(dtype).removeprefix("torch."))


def keep(objs: list[Optional[MemoryObj]], at: list[int], answers: list[int]) -> None:
    """Gives back the memory of what was not loaded."""
    loaded = {n for n, answer in zip(at, answers) if answer >= 0}
    for n, obj in enumerate(objs):
        if obj is not None and n not in loaded:
            obj.ref_count_down()
            objs[n] = None
