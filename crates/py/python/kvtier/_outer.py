"""What stands around our parameters in LMCache's object for a plugin. LMCache does not show it to us; the frame that makes us does."""

from types import FrameType
from typing import Any, Optional


def config_of(maker: Optional[FrameType]) -> Any:
    """What the frame that makes us calls its configuration. There is no frame where a thread begins with us."""
    return None if maker is None else maker.f_locals.get("config")


def refuse_two_capacities(outer: Any) -> None:
    """Were LMCache to count and evict too, it would do so blindly: it does not see what other processes save, nor what a restart finds."""
    if getattr(outer, "adapter_params", None) is None:
        return
    if getattr(outer, "max_capacity_gb", 0):
        raise ValueError(
            "max_capacity_gb beside adapter_params and kvtier's own capacity are two caps on one cache: leave max_capacity_gb out, "
            "and set `bytes` of the tiers in adapter_params"
        )
    if getattr(outer, "eviction_config", None) is not None:
        raise ValueError(
            "eviction beside adapter_params and kvtier's own eviction would evict the same cache twice: leave `eviction` out"
        )


def refuse_global_eviction(outer: Any) -> None:
    """Quotas of salts are LMCache's to keep, and it carries them out through us. What the cache as a whole may hold is ours."""
    eviction = getattr(outer, "eviction_config", None)
    policy = getattr(eviction, "eviction_policy", None)
    if getattr(outer, "adapter_params", None) is not None and policy in ("LRU", "ARC"):
        raise ValueError(
            f"eviction {policy} beside adapter_params and kvtier's own eviction would evict the same cache twice: move `eviction` into "
            "adapter_params, or leave it out (IsolatedLRU, for quotas of salts, may stay)"
        )
