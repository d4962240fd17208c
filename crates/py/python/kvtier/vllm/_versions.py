"""The versions of vLLM whose interface for tiers is supported."""

from importlib import import_module

from .. import _engine

# Its interface for tiers is experimental: each of these is tested.
SUPPORTED = ((0, 32), (0, 33))


def vllm_version() -> str:
    """The version of vLLM in this process."""
    return str(import_module("vllm.version").__version__)


def minor(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, fewer if it has no numbers."""
    return _engine.version_numbers(version, 2)


def check() -> None:
    """Checks the version of vLLM.

    :raises ImportError: for one that is not supported, with the remedy.
    """
    _engine.check_version("vLLM", vllm_version(), SUPPORTED, "docs/vllm.md")
