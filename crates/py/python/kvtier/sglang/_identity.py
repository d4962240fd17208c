"""What decides what the bytes of a page mean. Two engines that differ in any of it never see each other's pages."""

import json
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Optional

from .. import _element_types
from . import _versions
from ._host_memory import PageMap, buffers

# Version of the list of fields below; changes with it.
FORMAT = 1
# What a pool states of its tensors, where it has it.
GEOMETRY = (
    "layer_num",
    "target_layer_num",
    "start_layer",
    "end_layer",
    "head_dim",
    "head_group_num",
    "v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "kv_cache_dim",
    "item_bytes",
    "state_page_bytes",
    "swa_page_size",
    "indexer_page_stride_size",
    "num_mamba_layers",
    "temporal_state_elem_size",
    "temporal_state_shape",
    "conv_state_elem_sizes",
    "conv_state_shapes",
    "storage_format_tag",
)
# Of SGLang's configuration of the model, and of the draft model.
MODEL_SETTINGS = ("kv_cache_dtype", "dtype", "quantization", "revision", "json_model_override_args", "quantization_param_path")
DRAFT_SETTINGS = (
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "speculative_draft_model_quantization",
    "speculative_draft_kv_cache_dtype",
)
DTYPES = ("dtype", "temporal_dtype", "conv_dtype", "indexer_dtype")
# Classes of pools with keys and values, or latents. Of subclasses for other formats nothing is known.
PLAIN_CLASSES = ("MHATokenToKVPoolHost", "AsymmetricMHATokenToKVPoolHost", "HiSparseMHATokenToKVPoolHost", "MLATokenToKVPoolHost")


@dataclass(frozen=True)
class Shard:
    """The part of a page's heads that a chunk has: ``rank`` of ``count``. All ranks have the same bytes if there is only one part."""

    rank: int
    count: int


def shards(config: Any, is_replicated: bool) -> list[Shard]:
    """The shards that this rank has of each page."""
    if is_replicated:
        # All ranks of tensor parallelism have the same bytes, but for those that share the tokens of a page.
        return [Shard(config.dcp_rank, config.dcp_size)]
    split = split_factor(config)
    count = config.tp_size * split
    return [Shard(config.tp_rank * split + at, count) for at in range(split)]


def split_factor(config: Any) -> int:
    """In how many chunks the heads of a page are stored, so that engines with other sizes of tensor parallelism share them."""
    return int(config.tp_lcm_size // config.tp_size) if config.should_split_heads else 1


def engine_settings(pool_name: str, pool: Any, weights: Optional[str]) -> dict[str, Any]:
    """What the engine's own configuration says of the bytes, where SGLang has published it: pools of all 8-bit floats have the dtype ``uint8``, and
    the name of a model is the one that it is served under, which says neither where its weights are nor how it computes."""
    context = import_module("sglang.srt.runtime_context")
    settings = {name: _published(context.get_model, name) for name in MODEL_SETTINGS}
    settings["has_dummy_weights"] = _published(context.get_model, "load_format") == "dummy"
    # Hosts may have the same weights at different paths: what the operator says of them counts instead.
    settings["model_path"] = _published(context.get_model, "model_path") if weights is None else None
    if _has_draft_layers(pool_name, pool):
        settings.update({f"draft_{name}": _published(context.get_spec, name) for name in DRAFT_SETTINGS})
    return settings


def _has_draft_layers(pool_name: str, pool: Any) -> bool:
    # A draft model has pools of its own, or its layers come after those of the model in the same pages.
    return pool_name.startswith("draft") or getattr(pool, "target_layer_num", None) != getattr(pool, "layer_num", None)


def _published(namespace: Any, name: str) -> Any:
    try:
        return _plain(getattr(namespace(), name, None))
    except ValueError:
        # SGLang has published no configuration in this process.
        return None


@dataclass(frozen=True)
class Names:
    """What the operator says of an engine."""

    weights: Optional[str]
    share_data_parallel: bool


def fields(config: Any, names: Names, pool_name: str, pages: PageMap, shard: Shard, is_replicated: bool) -> dict[str, Any]:
    """The fields of a pool's pages."""
    pool = pages.pool
    heads = getattr(pool, "head_num", None)
    return {
        "format": FORMAT,
        "engine": "sglang",
        "engine_version": _versions.release(),
        "settings": engine_settings(pool_name, pool, names.weights),
        "model": config.model_name,
        "weights": names.weights,
        "pool": pool_name,
        "class": type(pool).__name__,
        "layout": getattr(pool, "layout", None),
        "order": pages.order,
        "page_tokens": pages.page_tokens,
        "pool_page_size": getattr(pool, "page_size", None),
        "logical_page_size": config.logical_page_size,
        "heads": None if heads is None else heads // pages.split,
        "pieces": pages.lengths,
        "dtypes": [str(getattr(pool, name, None)) for name in DTYPES],
        "device_layouts": [str(info.buffers.layout) for info in getattr(pool, "_buffer_infos", ()) if hasattr(info.buffers, "layout")],
        "geometry": {name: _plain(getattr(pool, name, None)) for name in GEOMETRY},
        "replicated": is_replicated,
        "tp": {"rank": shard.rank, "size": shard.count},
        # Ranks that share tokens are chosen by their tensor rank.
        "dcp": {"rank": config.dcp_rank, "size": config.dcp_size, "tp_size": config.tp_size if config.dcp_size > 1 else None},
        "pp": {"rank": config.pp_rank, "size": config.pp_size},
        "cp": {"rank": config.attn_cp_rank, "size": config.attn_cp_size},
        # Ranks of data parallelism have the same weights and shards, and other requests: by themselves their pages have the same bytes.
        "dp": None if names.share_data_parallel else config.dp_rank,
    }


def element_type(pool_name: str, pool: Any) -> Optional[str]:
    """PyTorch's name of the type of all elements of a pool; ``None`` if they are of several types or no floats."""
    dtypes = {str(tensor.dtype) for tensor in buffers(pool)}
    if len(dtypes) != 1:
        # Such as the states of Mamba layers.
        return None
    dtype = dtypes.pop()
    if dtype != "torch.uint8":
        return _element_types.of_kv_cache(dtype)
    # Pools of all 8-bit floats are so, and others whose pages have scales between the elements.
    return _element_types.of_kv_cache(_kv_cache_dtype(pool_name)) if _has_plain_elements(pool) else None


def _kv_cache_dtype(pool_name: str) -> Any:
    """The dtype of the KV cache in SGLang's configuration."""
    context = import_module("sglang.srt.runtime_context")
    of_draft = _published(context.get_spec, "speculative_draft_kv_cache_dtype") if pool_name.startswith("draft") else None
    return of_draft or _published(context.get_model, "kv_cache_dtype")


def _has_plain_elements(pool: Any) -> bool:
    """Whether a page has elements of the KV cache's dtype and nothing else."""
    if type(pool).__name__ not in PLAIN_CLASSES:
        return False
    parts: list[Any] = [getattr(pool, name, None) for name in ("kv_lora_rank", "qk_rope_head_dim")]
    # Latents with scales beside them are longer than their parts.
    return None in parts or getattr(pool, "kv_cache_dim", None) == sum(parts)


def text(fields_of_pool: dict[str, Any]) -> str:
    """The canonical text of the fields."""
    return json.dumps(fields_of_pool, sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """A value for JSON."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value)
