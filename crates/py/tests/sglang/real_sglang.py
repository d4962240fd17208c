"""SGLang's real classes, from one of two places.

``KVTIER_SGLANG`` is the folder with the unpacked modules of a wheel: their host pools, storage backends and the factory run here over a stand-in for
torch. `cargo xtask ci --only sglang-contract` sets it. With ``KVTIER_SGLANG_ENGINE`` SGLang and torch are installed, as in
`cargo xtask nightly --only sglang`, and nothing has a stand-in.
"""

import abc
import dataclasses
import importlib.abc
import importlib.machinery
import os
import sys
import types
import unittest

HAS_ENGINE = "KVTIER_SGLANG_ENGINE" in os.environ
ROOT = os.environ.get("KVTIER_SGLANG")
if not HAS_ENGINE and not ROOT:
    raise unittest.SkipTest("KVTIER_SGLANG names no folder: run `cargo xtask ci --only sglang-contract`")

# Packages whose `__init__` is not run, since it imports the engine.
PACKAGES = ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.storage")


class _AnyClass(abc.ABCMeta):
    """A class whose attributes are classes."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})

    def __call__(cls, *args, **named):
        # A decorator, or an object.
        return args[0] if len(args) == 1 and callable(args[0]) else super().__call__(*args, **named)


class _AnyModule(types.ModuleType):
    """A module whose attributes are classes, and whose questions about the platform are answered by no."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("is_"):
            return lambda *args, **named: False
        return _AnyClass(name, (), {})


class Struct:
    """A stand-in for msgspec's."""

    def __init_subclass__(cls, **settings):
        pass

    def __init__(self, **fields):
        self.__dict__.update(fields)
        getattr(self, "__post_init__", lambda: None)()


@dataclasses.dataclass
class StorageMetrics:
    """SGLang's own has these fields, in a module that needs the engine."""

    prefetch_pgs: list = dataclasses.field(default_factory=list)
    backup_pgs: list = dataclasses.field(default_factory=list)
    prefetch_bandwidth: list = dataclasses.field(default_factory=list)
    backup_bandwidth: list = dataclasses.field(default_factory=list)


class Settings(types.SimpleNamespace):
    """What the engine publishes of its configuration. Tests change it."""


MODEL, SPEC = Settings(kv_cache_dtype="auto", dtype="bfloat16", quantization=None, revision=None), Settings()


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of torch, and those of SGLang that were not unpacked."""

    def find_spec(self, name, path=None, target=None):
        place = os.path.join(ROOT, *name.split("."))
        if name.partition(".")[0] not in ("torch", "sglang") or os.path.exists(place + ".py") or os.path.exists(place + "/__init__.py"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _AnyModule(spec.name)

    def exec_module(self, module):
        pass


def _module(name, kind=_AnyModule, **attributes):
    module = kind(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module


def _install():
    import torch_stand_in

    sys.path.insert(0, ROOT)
    sys.meta_path.insert(0, _StandIns())
    _module("torch", __path__=[], **torch_stand_in.ATTRIBUTES)
    _module("msgspec", Struct=Struct)
    for name in PACKAGES:
        _module(name, types.ModuleType, __path__=[os.path.join(ROOT, *name.split("."))])
    _module("sglang.srt.runtime_context", get_model=lambda: MODEL, get_spec=lambda: SPEC)
    _module("sglang.srt.observability.metrics_collector", StorageMetrics=StorageMetrics)


if not HAS_ENGINE:
    _install()

import torch  # noqa: E402
from sglang.srt.mem_cache import hicache_storage, memory_pool_host  # noqa: E402
from sglang.srt.mem_cache.pool_host import dsa, mamba, mha, mla, page_unified  # noqa: E402
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402

__all__ = ["StorageBackendFactory", "dsa", "hicache_storage", "mamba", "memory_pool_host", "mha", "mla", "page_unified", "torch"]
