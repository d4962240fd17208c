"""A storage backend of SGLang's hierarchical cache (HiCache) over kvtier's tiers, by configuration alone::

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
       "backend_name": "kvtier", "module_path": "kvtier.sglang", "class_name": "KvtierHiCache", "interface_v1": 1,
       "tiers": [{"type": "file", "path": "/mnt/nvme/kv", "bytes": "500GiB"}]}'

See docs/sglang.md. The class is imported on first use, because it needs SGLang.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .hicache import KvtierHiCache

__all__ = ["KvtierHiCache"]


def __getattr__(name: str) -> Any:
    if name == "KvtierHiCache":
        from . import _versions

        _versions.check()
        from .hicache import KvtierHiCache

        return KvtierHiCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
