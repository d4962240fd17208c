"""Reads the configuration of a storage plugin from LMCache's settings."""

from typing import Any, Optional

from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.path_sharder import PathSharder

from . import _extra_config

# The settings below `storage_plugin.<name>`, including those that LMCache reads itself.
SETTINGS = ("module_path", "class_name", "tiers", "url", "gds_path", "bytes", "save_from", "metrics")


def own_name(config: LMCacheEngineConfig, class_name: str) -> str:
    """The name of this plugin, which LMCache does not pass: the one that names the class."""
    extra = config.extra_config or {}
    names = config.storage_plugins or []
    own = [n for n in names if str(extra.get(f"storage_plugin.{n}.class_name")) == class_name]
    if len(own) != 1:
        raise ValueError(f"{len(own)} of storage_plugins name {class_name} as their class_name: keep one")
    return str(own[0])


def settings(config: LMCacheEngineConfig, name: str, dst_device: str) -> dict[str, Any]:
    """The settings that configure the tiers: only those of this plugin."""
    extra, place = dict(config.extra_config or {}), f"storage_plugin.{name}"
    if config.gds_path is not None:
        raise ValueError(
            f"gds_path = {config.gds_path!r} starts LMCache's own GDS backend on the same files as kvtier's: move it to "
            f"extra_config[{place + '.gds_path'!r}]"
        )
    others = [f"storage_plugin.{other}" for other in config.storage_plugins or []]
    _extra_config.refuse_unknown(extra, place, SETTINGS, others)
    given = {setting for setting in SETTINGS if extra.get(f"{place}.{setting}") is not None}
    if "bytes" in given and "gds_path" not in given and given & {"tiers", "url"}:
        raise ValueError(f"extra_config['{place}.bytes'] is the cap of gds_path, which is missing: write `bytes` into the tier that it is for")
    own = {key: value for key, value in extra.items() if key.startswith(f"{place}.")}
    own[f"{place}.module_path"] = "kvtier.lmcache"
    paths = own.get(f"{place}.gds_path")
    if paths is not None:
        sharder = PathSharder(raw_csv=str(paths), strategy=config.gds_path_sharding, dst_device=dst_device)
        own[f"{place}.gds_path"] = sharder.selected
    if "kvtier.gds_shape" in extra:
        own["kvtier.gds_shape"] = extra["kvtier.gds_shape"]
    engine = {"storage_plugins": [name], "extra_config": own}
    given = set(getattr(config, "_user_set_keys", ()))
    for key in given & {"use_gds", "gds_backend", "cache_policy"}:
        engine[key] = getattr(config, key)
    return engine


def metrics_address(config: LMCacheEngineConfig, name: str, metadata: LMCacheMetadata) -> Optional[str]:
    """The address of the metrics server; ``None`` without one."""
    return _extra_config.metrics_address(dict(config.extra_config or {}), f"storage_plugin.{name}", metadata)


def save_from(config: LMCacheEngineConfig, name: str) -> str:
    """Where LMCache's copies for saves are: ``host`` or ``gpu``."""
    source = str((config.extra_config or {}).get(f"storage_plugin.{name}.save_from", "host"))
    if source not in ("host", "gpu"):
        raise ValueError(f"extra_config['storage_plugin.{name}.save_from'] = {source!r}: write host or gpu")
    return source
