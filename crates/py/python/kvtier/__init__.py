"""The storage layer for the KV cache of LLM inference.

``Store`` is for your own programs, and ``Queue`` for those that submit batches without waiting. ``kvtier.vllm`` is a tier of vLLM's KV offloading,
and ``kvtier.lmcache`` has the plugins for LMCache.

``Connector`` is a client for LMCache's ``native_plugin``::

    {"type": "native_plugin", "module_path": "kvtier", "class_name": "Connector",
     "adapter_params": {"tiers": [{"type": "file", "path": "/mnt/nvme/kv", "bytes": "500GiB"}]}}
"""

import sys
from collections.abc import Sequence
from typing import Any, Optional

from . import _log, _native, _lmcache_adapter_config, errors
from ._native import __version__
from ._shapes import Shape
from ._status import Status, TierStatus, Usage
from .keys import EngineKey, Key
from .queue import Completion, Queue, Region
from .store import Store

__all__ = [
    "Completion",
    "Connector",
    "EngineKey",
    "Key",
    "Queue",
    "Region",
    "Shape",
    "Status",
    "Store",
    "TierStatus",
    "Usage",
    "__version__",
    "errors",
]


class Connector(_native.Connector):
    """Batches of saves, loads, lookups and removes over tiers, submitted without waiting.

    ``tiers`` is a list of specs, the fastest first; ``config`` is the path of a configuration file. A batch that takes longer than
    ``timeout_seconds`` completes with the results that it has, as soon as no medium uses its buffers any more, at most ten minutes later.
    ``metrics`` is the address of a Prometheus endpoint, such as ``127.0.0.1:9464``.
    """

    def __new__(
        cls,
        *,
        tiers: Optional[Sequence[dict[str, Any]]] = None,
        config: Optional[str] = None,
        timeout_seconds: float = 30.0,
        metrics: Optional[str] = None,
    ) -> "Connector":
        _lmcache_adapter_config.refuse_two_capacities(_lmcache_adapter_config.from_frame(sys._getframe().f_back))
        if "lmcache" in sys.modules:
            _log.follow_lmcache()
        source = {"tiers": tiers, "config": config}
        connector = super().__new__(cls, source, timeout_seconds=timeout_seconds, metrics=metrics)
        _log.opened(connector)
        return connector
