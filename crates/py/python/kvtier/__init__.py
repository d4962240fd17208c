"""The storage layer for the KV cache of LLM inference.

``Connector`` is a client for LMCache's ``native_plugin``::

    {"type": "native_plugin", "module_path": "kvtier", "class_name": "Connector",
     "adapter_params": {"tiers": [{"type": "file", "path": "/mnt/nvme/kv", "bytes": "500GiB"}]}}
"""

import sys
from collections.abc import Sequence
from typing import Any, Optional

from . import _native
from ._native import __version__

__all__ = ["Connector", "__version__"]


class Connector(_native.Connector):
    """Batches of saves, loads, lookups and removes over tiers, submitted without waiting.

    ``tiers`` is a list of specs, the fastest first; ``config`` is the path of a file that holds them. A batch that takes longer than
    ``timeout_seconds`` ends with what it has.
    """

    def __new__(
        cls,
        *,
        tiers: Optional[Sequence[dict[str, Any]]] = None,
        config: Optional[str] = None,
        timeout_seconds: float = 30.0,
    ) -> "Connector":
        _refuse_two_capacities(sys._getframe(1).f_locals.get("config"))
        return super().__new__(cls, tiers=tiers, config=config, timeout_seconds=timeout_seconds)


def _refuse_two_capacities(outer: Any) -> None:
    """LMCache makes us from the ``adapter_params`` of a larger object and does not show us that. Were it to count and evict too, it would
    do so blindly: it does not see what other processes save, nor what a restart finds."""
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
