"""The configuration object of LMCache that contains ``adapter_params``.

LMCache passes a plugin only ``adapter_params``. The fields beside it are in the local variable ``config`` of the frame that creates the plugin.
"""

from types import FrameType
from typing import Any, Optional


def from_frame(caller: Optional[FrameType]) -> Any:
    """The variable ``config`` of the caller's frame. There is no frame if the plugin is created at the start of a thread."""
    return None if caller is None else caller.f_locals.get("config")


def refuse_two_capacities(config: Any) -> None:
    """Refuses a capacity and an eviction of LMCache. It would count only what this process saves and finds after a start, and so evict
    by wrong numbers."""
    if getattr(config, "adapter_params", None) is None:
        return
    if getattr(config, "max_capacity_gb", 0):
        raise ValueError(
            "max_capacity_gb beside adapter_params and kvtier's own capacity are two caps on one cache: leave max_capacity_gb out, "
            "and set `bytes` of the tiers in adapter_params"
        )
    if getattr(config, "eviction_config", None) is not None:
        raise ValueError(
            "eviction beside adapter_params and kvtier's own eviction would evict the same cache twice: leave `eviction` out"
        )


def refuse_global_eviction(config: Any) -> None:
    """Refuses an eviction policy of LMCache over the whole cache. Its quotas per salt may stay: LMCache enforces them through the adapter."""
    eviction = getattr(config, "eviction_config", None)
    policy = getattr(eviction, "eviction_policy", None)
    if getattr(config, "adapter_params", None) is not None and policy in ("LRU", "ARC"):
        raise ValueError(
            f"eviction {policy} beside adapter_params and kvtier's own eviction would evict the same cache twice: move `eviction` into "
            "adapter_params, or leave it out (IsolatedLRU, for quotas of salts, may stay)"
        )
