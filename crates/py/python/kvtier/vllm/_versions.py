"""The versions of vLLM whose interface for tiers is supported."""

from importlib import import_module

# Its interface for tiers is experimental: each of these is tested.
SUPPORTED = ((0, 32), (0, 33))


def vllm_version() -> str:
    """The version of vLLM in this process."""
    return str(import_module("vllm.version").__version__)


def minor(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, fewer if it has no numbers."""
    numbers = []
    for part in version.split(".")[:2]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def check() -> None:
    """Checks the version of vLLM.

    :raises ImportError: for one that is not supported, with the remedy.
    """
    version = vllm_version()
    if minor(version) not in SUPPORTED:
        from .. import __version__

        supported = " and ".join(".".join(map(str, one)) for one in SUPPORTED)
        raise ImportError(
            f"kvtier {__version__} supports vLLM {supported}, and this is vLLM {version}, whose interface for tiers may differ: install one of "
            "these, or a kvtier that names this version in docs/vllm.md"
        )
