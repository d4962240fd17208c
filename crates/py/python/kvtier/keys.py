"""The names of chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Union

from . import errors

# Separates the fields of a key in its text.
_SEPARATOR = "@"
_RANK_MAX = 2**63 - 1
_GROUP_MAX = 2**32 - 1


@dataclass(frozen=True)
class Key:
    """The key of a chunk: model, rank, object group, and the hash of all tokens up to the chunk's end.

    Chunks with different salts are separate. A salt may be a secret: ``repr`` omits it, ``str`` contains it.
    """

    model: str
    hash: bytes
    rank: int = 0
    group: int = 0
    salt: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        _check_text("Key.model", self.model)
        if not isinstance(self.hash, bytes):
            raise TypeError(
                f"Key.hash is bytes, not {type(self.hash).__name__}: give the hash of the tokens, such as "
                "hashlib.sha256(tokens).digest()"
            )
        _check_int("Key.rank", self.rank, 0, _RANK_MAX)
        _check_int("Key.group", self.group, 0, _GROUP_MAX)
        _check_text("Key.salt", self.salt)

    def __str__(self) -> str:
        name = f"{self.model}@{self.rank:08x}@{self.group:x}@{self.hash.hex()}"
        return f"{name}@{self.salt}" if self.salt else name


@dataclass(frozen=True)
class EngineKey:
    """The key of a chunk in LMCache's in-process mode, for tiers of its layouts, as with ``remote_url`` and ``gds_path``.

    ``hash`` is an integer, ``dtype`` LMCache's name of the element type, such as ``bfloat16``; ``tags`` are pairs of name and value.
    """

    model: str
    hash: int
    dtype: str
    world_size: int = 1
    worker_id: int = 0
    tags: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        _check_text("EngineKey.model", self.model)
        _check_int("EngineKey.hash", self.hash)
        _check_text("EngineKey.dtype", self.dtype)
        _check_int("EngineKey.world_size", self.world_size)
        _check_int("EngineKey.worker_id", self.worker_id)

    def __str__(self) -> str:
        tags = "".join(f"@{name}%{value}" for name, value in self.tags)
        return f"{self.model}@{self.world_size}@{self.worker_id}@{self.hash:x}@{self.dtype}{tags}"


AnyKey = Union[Key, EngineKey, str]


def text(key: AnyKey, is_engine: bool) -> str:
    """The text of a key in LMCache's form. The forms of the two modes are ambiguous as text, so the class must match the tiers' mode."""
    if isinstance(key, (EngineKey if is_engine else Key, str)):
        return str(key)
    if isinstance(key, EngineKey):
        raise errors.Invalid("these tiers take keys of another kind: give a kvtier.Key, not a kvtier.EngineKey")
    if isinstance(key, Key):
        raise errors.Invalid(
            "these tiers have names for keys of LMCache's in-process mode alone: give a kvtier.EngineKey or its text, "
            "model@world_size@worker_id@hash@dtype, not a kvtier.Key"
        )
    raise TypeError(f"a key is a kvtier.Key, a kvtier.EngineKey or a text, not {type(key).__name__}")


def texts(keys: Sequence[AnyKey], is_engine: bool) -> list[str]:
    """The texts of a list of keys."""
    if isinstance(keys, (str, bytes, Key, EngineKey)):
        raise TypeError(f"keys are a list, not one {type(keys).__name__}: write [key]")
    return [text(key, is_engine) for key in keys]


def parse(name: str, is_engine: bool) -> AnyKey:
    """Parses the text of a key. The text of a single layer's chunk is returned as it is."""
    model, *parts = name.split(_SEPARATOR)
    if not is_engine:
        rank, group, digest, *salt = parts
        return Key(model, bytes.fromhex(digest), int(rank, 16), int(group, 16), salt[0] if salt else "")
    world_size, worker_id, digest, dtype, *tags = parts
    pairs = tuple((name, value) for name, percent, value in (tag.partition("%") for tag in tags) if percent)
    if len(pairs) < len(tags):
        return name
    return EngineKey(model, int(digest, 16), dtype, int(world_size), int(worker_id), pairs)


def listed(name: str, is_engine: bool) -> AnyKey:
    """Parses a name from a medium, which may hold foreign files: a name that is no key is returned as a text."""
    try:
        key = parse(name, is_engine)
    except ValueError:
        return name
    return key if str(key) == name else name


def _check_text(name: str, value: object) -> None:
    """The message omits the value: a salt may be a secret, and a text passed as the model may contain one."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a text, not {type(value).__name__}")
    if _SEPARATOR in value:
        raise ValueError(f"{name} contains {_SEPARATOR!r}, which separates the fields of a key: leave it out")


def _check_int(name: str, value: object, least: int = -(2**63), most: int = 2**4096) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name} is an integer, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name} = {value} is out of range: {least} to {most}")
