"""The versions of SGLang whose interface for storage backends is supported."""

from importlib import import_module, metadata

from .. import _engine

# The interface is experimental: each of these is tested.
SUPPORTED = ((0, 5, 23),)


def sglang_version() -> str:
    """The version of SGLang in this process."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return str(import_module("sglang.version").__version__)


def release() -> str:
    """The first three numbers of the version, as a text."""
    return ".".join(map(str, _engine.version_numbers(sglang_version(), 3)))


def check() -> None:
    """Checks the version of SGLang.

    :raises ImportError: for one that is not supported, with the remedy.
    """
    _engine.check_version("SGLang", sglang_version(), SUPPORTED, "docs/sglang.md")
