"""The real classes of a vLLM wheel whose modules were unpacked, with stand-ins for torch, the GPU and vLLM's configuration only.

``KVTIER_VLLM`` is the folder with the unpacked modules: `cargo xtask ci --only vllm-contract` sets it. The ``__init__`` of packages above the
modules is not run, since it imports torch.
"""

import ast
import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import types
import unittest

ROOT = os.environ.get("KVTIER_VLLM")
if not ROOT:
    raise unittest.SkipTest("KVTIER_VLLM names no folder: run `cargo xtask ci --only vllm-contract`")
PACKAGES = (
    "vllm",
    "vllm.v1",
    "vllm.v1.core",
    "vllm.distributed",
    "vllm.distributed.kv_transfer",
    "vllm.distributed.kv_transfer.kv_connector",
    "vllm.distributed.kv_transfer.kv_connector.v1",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading",
)


class _AnyClass(type):
    """A class whose attributes are classes."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})


class _AnyModule(types.ModuleType):
    """A module whose attributes are classes."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})


class _Logger(logging.Logger):
    def __init__(self, name):
        super().__init__(name, logging.ERROR)

    def warning_once(self, *args):
        self.warning(*args)

    def info_once(self, *args):
        self.info(*args)


def _module(name, kind=types.ModuleType, **attributes):
    module = kind(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module
    return module


def _hash_root_functions():
    """The functions of vLLM's own ``kv_cache_utils`` around the root of all block hashes. The rest of the module needs torch."""
    path = os.path.join(ROOT, "vllm/v1/core/kv_cache_utils.py")
    with open(path) as file:
        tree = ast.parse(file.read())
    wanted = {"DEFAULT_NONE_HASH_SEED", "_NONE_HASH_SEED", "resolve_none_hash_seed", "get_none_hash_seed", "init_none_hash"}

    def names(node):
        targets = getattr(node, "targets", None) or [getattr(node, "target", node)]
        return {getattr(target, "id", getattr(target, "name", None)) for target in targets}

    body = [node for node in tree.body if names(node) & wanted]
    found = set().union(*map(names, body))
    assert wanted <= found, f"{path} has no {wanted - found}"
    code = compile(ast.Module([ast.parse("from __future__ import annotations").body[0], *body], []), path, "exec")
    module = _module("vllm.v1.core.kv_cache_utils", os=os, logger=_Logger("vllm"), BlockHash=bytes, _NON_CRYPTO_HASH_FUNCTIONS=frozenset())
    exec(code, module.__dict__)
    return module


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below torch and vLLM's configuration."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith(("torch.", "vllm.config.")):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _AnyModule(spec.name)

    def exec_module(self, module):
        pass


def _install():
    sys.path.insert(0, ROOT)
    sys.meta_path.insert(0, _StandIns())
    _module("torch", _AnyModule, int8="int8", __path__=[])
    for name in PACKAGES:
        _module(name, __path__=[os.path.join(ROOT, *name.split("."))])
    _module("vllm.config", _AnyModule, __path__=[])
    # Imports every connector, and torch with them.
    _module("vllm.distributed.kv_transfer.kv_connector.factory", _AnyModule)
    # Maps the region with torch; the scene has one with the same calls.
    _module("vllm.v1.kv_offload.cpu.shared_offload_region", _AnyModule)
    _module("vllm.logger", init_logger=_Logger)
    _module(f"{PACKAGES[-1]}.canonical_mapping", canonical_format_id=lambda layout: f"canonical-{layout}")
    return _hash_root_functions()


hashes = _install()
hashes.init_none_hash(lambda seed: b"root of " + seed.encode())
VERSION = importlib.import_module("vllm.version").__version__
