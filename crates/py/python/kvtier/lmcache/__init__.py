"""Plugins for LMCache over the same tiers.

``KvtierL2Adapter`` is for the multi-process server's ``plugin``::

    {"type": "plugin", "module_path": "kvtier.lmcache", "class_name": "KvtierL2Adapter",
     "adapter_params": {"type": "s3", "s3_endpoint": "s3://bucket", "s3_region": "us-east-1"}}

where ``adapter_params`` is LMCache's own object for an adapter, or a kvtier configuration. ``KvtierRemoteConnector`` is for
``remote_storage_plugins`` of the in-process mode, ``KvtierGdsBackend`` for its ``storage_plugins``. Each class is imported on first use, because
each needs other parts of LMCache.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapter import KvtierL2Adapter, KvtierL2AdapterConfig
    from .gds import KvtierGdsBackend
    from .remote import KvtierConnectorAdapter, KvtierRemoteConnector

__all__ = [
    "KvtierConnectorAdapter",
    "KvtierGdsBackend",
    "KvtierL2Adapter",
    "KvtierL2AdapterConfig",
    "KvtierRemoteConnector",
]


def __getattr__(name: str) -> Any:
    if name in ("KvtierL2Adapter", "KvtierL2AdapterConfig"):
        from . import adapter

        return getattr(adapter, name)
    if name in ("KvtierConnectorAdapter", "KvtierRemoteConnector"):
        from . import remote

        return getattr(remote, name)
    if name == "KvtierGdsBackend":
        from . import gds

        return gds.KvtierGdsBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
