"""What decides what the bytes of a chunk mean. Two engines that differ in any of it never see each other's chunks."""

import json
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Optional

from .. import _element_types
from . import _versions

# Version of the list of fields below; changes with it.
FORMAT = 1


@dataclass(frozen=True)
class Identity:
    """The fields, and what the keys need of them."""

    model: str
    rank: int
    # The id of each KV cache group, with which the names of its chunks end, and tokens of a chunk.
    group_tokens: tuple[tuple[int, int], ...]
    fields: dict[str, Any]
    # PyTorch's name of the type of all elements, if it is known.
    dtype: Optional[str] = None

    @property
    def text(self) -> str:
        """The canonical text of the fields."""
        return json.dumps(self.fields, sort_keys=True, separators=(",", ":"))


def of_engine(offloading_spec: Any, chunk_bytes: int, weights: Optional[str] = None) -> Identity:
    """The identity of an engine with this specification. Its hash seed is known only from the first request on. vLLM names the model and not its
    weights: ``weights`` is the operator's name for them."""
    config = offloading_spec.config
    parallel = config.parallel
    blocks_per_chunk = offloading_spec.blocks_per_chunk
    # The bytes of a chunk are then the same for all parallel sizes; otherwise they are those of this one.
    is_agnostic = bool(parallel.is_parallelism_agnostic or config.replicated_layout)
    sizes = {
        "world": parallel.world_size,
        "tp": parallel.tp_size,
        "pp": parallel.pp_size,
        "pcp": parallel.pcp_size,
        "dcp": parallel.dcp_size,
        "rank": parallel.rank,
        "worker_bytes_per_block": config.worker_kv_bytes_per_block,
    }
    groups = [
        {
            "tokens_per_block": group.tokens_per_block,
            "layers": list(group.layer_names),
            "group": group.group_id,
        }
        for group in config.groups
    ]
    fields = {
        "format": FORMAT,
        "engine": "vllm",
        "engine_version": ".".join(map(str, _versions.minor(_versions.vllm_version()))),
        "model": config.model.name,
        "weights": weights,
        "dtype": str(config.model.dtype),
        "kv_layout": config.kv_cache_layout,
        "canonical": canonical_format(config),
        "replicated": bool(config.replicated_layout),
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": blocks_per_chunk,
        "chunk_bytes": chunk_bytes,
        "groups": groups,
        "parallel": "agnostic" if is_agnostic else sizes,
        "hash": hash_root(),
    }
    group_tokens = tuple((group.group_id, group.tokens_per_block * blocks_per_chunk) for group in config.groups)
    model, rank = names_of_files(offloading_spec)
    # One type for all groups: vLLM names no other one to a tier. Encodings give the same bytes back whatever a chunk has.
    return Identity(model, rank, group_tokens, fields, _element_types.of_kv_cache(config.model.dtype))


def names_of_files(offloading_spec: Any) -> tuple[str, int]:
    """The name of this configuration and the rank in the files of vLLM's own ``fs`` tier: keys have the same, for people and for the layout of
    these files."""
    files = file_mapper(offloading_spec)
    return str(files.base_path).lstrip("/"), int(files.rank)


def with_run_config(tiers: Any, offloading_spec: Any) -> Any:
    """The specs, with the fields of vLLM's ``config.json`` in those of layout ``vllm-fs`` that lack them."""
    if not isinstance(tiers, list):
        return tiers

    def complete(tier: Any) -> Any:
        if not isinstance(tier, dict) or tier.get("layout") != "vllm-fs":
            return tier
        return {"vllm_run_config": file_mapper(offloading_spec).get_run_config(), **tier}

    return [complete(tier) for tier in tiers]


def file_mapper(offloading_spec: Any) -> Any:
    """What names the files of vLLM's own ``fs`` tier."""
    mapper = import_module("vllm.v1.kv_offload.file_mapper").FileMapper
    return mapper.from_offloading_spec("", offloading_spec, offloading_spec.blocks_per_chunk, True)


def canonical_format(config: Any) -> Any:
    """vLLM's name of the canonical layout, if it is in use."""
    if not config.canonical_layout:
        return None
    mapping = import_module("vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping")
    return mapping.canonical_format_id(config.kv_cache_layout)


def hash_root() -> str:
    """The hash from which all block hashes are chained: it depends on the hash algorithm and on its seed."""
    utils = import_module("vllm.v1.core.kv_cache_utils")
    root = getattr(utils, "NONE_HASH", None)
    return bytes(root).hex() if root is not None else f"seed {utils.get_none_hash_seed()}"


def has_random_hashes() -> bool:
    """Whether another process has other hashes for the same tokens."""
    import os

    utils = import_module("vllm.v1.core.kv_cache_utils")
    seed = utils.get_none_hash_seed()
    return seed not in (utils.DEFAULT_NONE_HASH_SEED, os.environ.get("PYTHONHASHSEED"))
