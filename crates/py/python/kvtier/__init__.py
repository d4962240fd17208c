"""The storage layer for the KV cache of LLM inference.

``Store`` is for programs of your own. ``kvtier.lmcache`` has what LMCache loads as plugins.

``Connector`` is a client for LMCache's ``native_plugin``::

    {"type": "native_plugin", "module_path": "kvtier", "class_name": "Connector",
     "adapter_params": {"tiers": [{"type": "file", "path": "/mnt/nvme/kv", "bytes": "500GiB"}]}}
"""

import sys
from collections.abc import Sequence
from typing import Any, Optional

from . import _log, _native, _outer, _told, errors
from ._native import __version__
from ._shapes import Shape
from .keys import EngineKey, Key
from .store import Status, Store, TierStatus, Usage

__all__ = ["Connector", "EngineKey", "Key", "Shape", "Status", "Store", "TierStatus", "Usage", "__version__", "errors"]


class Connector(_native.Connector):
    """Batches of saves, loads, lookups and removes over tiers, submitted without waiting.

    ``tiers`` is a list of specs, the fastest first; ``config`` is the path of a file that holds them. A batch that takes longer than
    ``timeout_seconds`` ends with what it has, as soon as no medium is at its buffers any more
    (or ten minutes later). At ``metrics``, an address such as ``127.0.0.1:9464``, Prometheus finds the tiers' numbers.
    """

    def __new__(
        cls,
        *,
        tiers: Optional[Sequence[dict[str, Any]]] = None,
        config: Optional[str] = None,
        timeout_seconds: float = 30.0,
        metrics: Optional[str] = None,
    ) -> "Connector":
        _outer.refuse_two_capacities(_outer.config_of(sys._getframe().f_back))
        if "lmcache" in sys.modules:
            _log.follow_lmcache()
        source = {"tiers": tiers, "config": config}
        made = super().__new__(cls, source, timeout_seconds=timeout_seconds, metrics=metrics)
        _told.opened(made)
        return made
