"""LMCache's memory objects, and the tensors of chunks."""

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
from .._shapes import Shape


@dataclass(frozen=True)
class Group:
    """The tensor of a chunk for one group of layers."""

    axes: tuple[int, ...]
    dtype: torch.dtype
    token_axis: int

    def token_bytes(self) -> int:
        """Bytes of one token, whose axis counts 1."""
        return int(math.prod(self.axes) * self.dtype.itemsize)

    def shape(self, tokens: int) -> torch.Size:
        return torch.Size([tokens if at == self.token_axis else n for at, n in enumerate(self.axes)])


class OnGpu:
    """The GPU memory of an object, for the native module, and the stream with pending work on it."""

    def __init__(self, obj: MemoryObj, stream: int) -> None:
        self.obj = obj
        self.__cuda_array_interface__ = {
            "shape": (obj.get_size(),),
            "typestr": "|u1",
            "data": (obj.data_ptr, False),
            "version": 3,
            # Torch numbers the default stream 0; the interface numbers it 1.
            "stream": stream or 1,
        }


def groups(key: CacheEngineKey, metadata: LMCacheMetadata, config: LMCacheEngineConfig) -> tuple[list[Group], MemoryFormat]:
    """The tensors of a chunk of this key, each with one token, and their format."""
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
    """The buffers of objects, in host or GPU memory as the driver reports. Pending work on these GPUs is ordered before kvtier's."""
    is_on_gpu = [_native.is_on_gpu(obj.data_ptr) for obj in objs]
    streams = _synchronized({obj.raw_tensor.device for obj, on_gpu in zip(objs, is_on_gpu) if on_gpu})
    return [
        OnGpu(obj, streams.get(obj.raw_tensor.device, 0)) if on_gpu else obj.byte_array
        for obj, on_gpu in zip(objs, is_on_gpu)
    ]


def _synchronized(devices: set[torch.device]) -> dict[torch.device, int]:
    """Waits for these GPUs, and returns the current stream of each. The calling thread's current device may be another."""
    streams: dict[torch.device, int] = {}
    if torch.cuda.is_initialized():
        for device in devices:
            # LMCache may have filled the objects on a stream that it does not expose.
            torch.cuda.synchronize(device)
            streams[device] = torch.cuda.current_stream(device).cuda_stream
    return streams


def shape(obj: MemoryObj) -> Optional[Shape]:
    """The shape of an object; ``None`` unless it is a single tensor, since a header states one shape."""
    shapes, dtype = obj.metadata.shapes, obj.get_dtype()
    if dtype is None or (shapes is not None and len(shapes) > 1):
        return None
    return Shape(tuple(obj.get_shape()), obj.get_memory_format().name, str(dtype).removeprefix("torch."))


def keep(objs: list[Optional[MemoryObj]], at: list[int], answers: list[int]) -> None:
    """Releases the objects whose chunks were not loaded."""
    loaded = {n for n, answer in zip(at, answers) if answer >= 0}
    for n, obj in enumerate(objs):
        if obj is not None and n not in loaded:
            obj.ref_count_down()
            objs[n] = None
