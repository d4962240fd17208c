"""Shapes of chunks, which LMCache's GDS layout stores in file headers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

# LMCache's formats of tensors with four axes, by the length of the first: keys and values, or one plane of latents.
FORMATS = {2: "KV_2LTD", 1: "KV_MLA_FMT"}
# Element types of such tensors, by torch's names.
DTYPES = frozenset(("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"))


@dataclass(frozen=True)
class Shape:
    """The shape of a chunk: elements along each axis, LMCache's name of the format, and torch's name of the element type; without one it is the
    type that each key names."""

    axes: tuple[int, ...]
    format: str = "KV_2LTD"
    dtype: Optional[str] = None

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Reads ``2x32x256x1024``: keys and values (or 1 for latents), layers, tokens, elements. Another format follows after a space."""
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
    """Chunks of a batch with one shape; ``None`` is the shape that the tier has."""

    shape: Optional[Shape]
    at: list[int]


def by_shape(buffers: Sequence[Any], given: Union[Shape, str, None], source: str) -> list[Group]:
    """Groups a batch by shape: the ``given`` one, else the configured one, else those of the buffers. ``source`` is where the tiers take a
    shape from: ``configured``, ``files`` or ``missing``."""
    everything = list(range(len(buffers)))
    if given is not None:
        return [Group(Shape.parse(given) if isinstance(given, str) else given, everything)]
    if source == "configured" or not everything:
        return [Group(None, everything)]
    groups: dict[Optional[Shape], list[int]] = {}
    for at, buffer in enumerate(buffers):
        groups.setdefault(_tensor(buffer) or (_flat(buffer) if source == "missing" else None), []).append(at)
    return [Group(shape, at) for shape, at in groups.items()]


def _tensor(buffer: Any) -> Optional[Shape]:
    """The shape of an array or tensor with the axes of an LMCache chunk, else ``None``."""
    axes = tuple(getattr(buffer, "shape", ()))
    dtype = str(getattr(buffer, "dtype", "")).removeprefix("torch.")
    if len(axes) != 4 or axes[0] not in FORMATS or dtype not in DTYPES:
        return None
    return Shape(axes, FORMATS[axes[0]], dtype)


def _flat(buffer: Any) -> Optional[Shape]:
    """The shape of plain bytes, which LMCache refuses to use as a tensor."""
    if hasattr(buffer, "data_ptr"):
        return Shape((buffer.numel() * buffer.element_size(),), "BINARY", "uint8")
    try:
        return Shape((memoryview(buffer).nbytes,), "BINARY", "uint8")
    except TypeError:
        return None
