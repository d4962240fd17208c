"""A tier of vLLM's KV offloading over kvtier's tiers, by configuration alone::

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
       "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 17179869184, "blocks_per_chunk": 16,
       "secondary_tiers": [{"type": "KvtierTier", "module_path": "kvtier.vllm",
                            "tiers": [{"type": "file", "path": "/mnt/nvme/kv", "bytes": "500GiB"}]}]}}'

See docs/vllm.md. The class is imported on first use, because it needs vLLM.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tier import KvtierTier

__all__ = ["KvtierTier"]


def __getattr__(name: str) -> Any:
    if name == "KvtierTier":
        from . import _versions

        _versions.check()
        from .tier import KvtierTier

        return KvtierTier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
