"""The storage layer for the KV cache of LLM inference.

``Store`` is for programs of your own. ``kvtier.lmcache`` has what LMCache loads as plugins.

``Connector`` is a client for LMCache's ``native_plugin``::

    {"type": "native_plugin", "module_path": "kvtier", "class_name": "Connector",
     "adapter_params": {"tiers": [{"type": "file", "path": "/mnt/nvme/kv", "bytes": "500GiB"}]}}
"""

import sys
from collections.abc import Sequence
from typing import Any, Optional

from . import _native, _outer, errors
from ._native import __version__
from .store import Key, Status, Store, Usage

__all__ = ["Connector", "Key", "Status", "Store", "Usage", "__version__", "errors"]


class Connector(_native.Connector):
    """Batches of saves, loads, lookups and removes over tiers, submitted without waiting.

    ``tiers`` is a list of specs, the fastest first; ``config`` is the path of a file that holds them. A batch that takes longer than
    ``timeout_seconds`` ends with what it has, as soon as no medium is at its buffers any more
    (or ten minutes later).
    """

    def __new__(
        cls,
        *,
        tiers: Optional[Sequence[dict[str, Any]]] = None,
        config: Optional[str] = None,
        timeout_seconds: float = 30.0,
    ) -> "Connector":
        _outer.refuse_two_capacities(_outer.config_of(sys._getframe().f_back))
        return super().__new__(cls, {"tiers": tiers, "config": config}, timeout_seconds=timeout_seconds)
