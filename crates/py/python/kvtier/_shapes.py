"""The tensors that chunks are, which files of LMCache's GDS layout state in their headers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

# LMCache's names of what four axes mean, by the first of them: keys and values apart, or one plane of latents.
FORMATS = {2: "KV_2LTD", 1: "KV_MLA_FMT"}
# Types of elements of such tensors, by torch's names.
DTYPES = frozenset(("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"))


@dataclass(frozen=True)
class Shape:
    """The tensor that a chunk is: elements along each axis, LMCache's name of what the axes mean, and torch's name of the type of the elements;
    without one it is the type that each key names."""

    axes: tuple[int, ...]
    format: str = "KV_2LTD"
    dtype: Optional[str] = None

    @classmethod
    def of_text(cls, text: str) -> "Shape":
        """Reads ``2x32x256x1024`` (keys and values, layers, tokens, elements), or with 1 in front latents; another format follows a blank."""
        numbers, _, named = text.partition(" ")
        try:
            axes = tuple(int(n) for n in numbers.split("x"))
            return cls(axes, named or FORMATS[axes[0]])
        except (ValueError, KeyError):
            raise ValueError(
                f"{text!r} is no shape: write as many numbers as the tensor has axes, such as 2x32x256x1024 (keys and values, layers, tokens, "
                "elements)"
            ) from None


@dataclass(frozen=True)
class Group:
    """The places in a batch of chunks that have one shape; ``None`` is that of the tier."""

    shape: Optional[Shape]
    at: list[int]


def by_shape(buffers: Sequence[Any], given: Union[Shape, str, None], known: str) -> list[Group]:
    """Groups a batch by shape: as ``given``, else as the buffers' own shapes say, where the tiers have none. ``known`` is what the tiers
    have: ``known``, ``learned`` or ``missing``."""
    everything = list(range(len(buffers)))
    if given is not None:
        return [Group(Shape.of_text(given) if isinstance(given, str) else given, everything)]
    if known == "known" or not everything:
        return [Group(None, everything)]
    groups: dict[Optional[Shape], list[int]] = {}
    for at, buffer in enumerate(buffers):
        groups.setdefault(_tensor(buffer) or (_flat(buffer) if known == "missing" else None), []).append(at)
    return [Group(shape, at) for shape, at in groups.items()]


def _tensor(buffer: Any) -> Optional[Shape]:
    """Of an array or tensor with the axes of a chunk of LMCache's."""
    axes = tuple(getattr(buffer, "shape", ()))
    dtype = str(getattr(buffer, "dtype", "")).removeprefix("torch.")
    if len(axes) != 4 or axes[0] not in FORMATS or dtype not in DTYPES:
        return None
    return Shape(axes, FORMATS[axes[0]], dtype)


def _flat(buffer: Any) -> Optional[Shape]:
    """Bytes without a meaning. LMCache refuses to use them as a tensor."""
    if hasattr(buffer, "data_ptr"):
        return Shape((buffer.numel() * buffer.element_size(),), "BINARY", "uint8")
    try:
        return Shape((memoryview(buffer).nbytes,), "BINARY", "uint8")
    except TypeError:
        return None
