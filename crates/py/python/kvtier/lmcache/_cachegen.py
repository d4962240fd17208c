"""Chunks that LMCache encodes with CacheGen before a connector gets them: ``remote_serde: cachegen``."""

from typing import Optional

import torch
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.protocol import RemoteMetadata

from .. import _native
from .._log import logger

NAME = "cachegen"


def is_set(config: LMCacheEngineConfig) -> bool:
    """Whether LMCache passes encoded chunks to its connectors."""
    return getattr(config, "remote_serde", None) == NAME


def open_reader(config: LMCacheEngineConfig, metadata: LMCacheMetadata) -> Optional[_native.CacheGen]:
    """What checks and decodes the chunks; ``None`` if LMCache does not encode them. Logs that they lose precision.

    Raises ``ValueError`` for what LMCache's serializer cannot encode.
    """
    if not is_set(config):
        return None
    for unsupported, name in [
        (metadata.use_mla, "a model with MLA"),
        (config.use_layerwise, "use_layerwise: true"),
        (metadata.get_num_groups() > 1, "several groups of layers"),
    ]:
        if unsupported:
            raise ValueError(f"remote_serde: {NAME} with {name}: LMCache cannot encode that; write remote_serde: naive")
    dtype = str(metadata.kv_dtype).removeprefix("torch.")
    reader = _native.CacheGen(metadata.model_name, list(metadata.kv_shape), dtype)
    logger.warning(
        "remote_serde: %s is lossy: LMCache quantises keys and values to 16 or 32 steps before they are stored, so loaded chunks differ from "
        "what the model computed; write remote_serde: naive for exact bytes",
        NAME,
    )
    return reader


def container(read: bytearray, header: Optional[RemoteMetadata], header_bytes: int, reader: _native.CacheGen) -> Optional[memoryview]:
    """The container in the bytes of a chunk, after its header of ``header_bytes`` bytes; ``None`` if it is none of this model.

    LMCache unpickles it without a check. Only what LMCache's serializer writes is passed on: a pickle can run any code.
    """
    data = memoryview(read)[header_bytes:]
    if header_bytes and (header is None or header.fmt != MemoryFormat.BINARY_BUFFER or header.length != len(data)):
        logger.warning("load: a chunk of %d bytes has no header of encoded data; it was saved with another remote_serde", len(read))
        return None
    try:
        reader.tokens(data)
    except ValueError as e:
        logger.warning("load: %s", e)
        return None
    return data


def shape(full: torch.Size, tokens: int) -> torch.Size:
    """The shape of a chunk of ``tokens`` tokens, of that of a full chunk."""
    at = MemoryFormat.KV_2LTD.token_dim()
    return torch.Size([tokens if axis == at else extent for axis, extent in enumerate(full)])
