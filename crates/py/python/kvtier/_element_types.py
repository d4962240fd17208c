"""The types of the elements of engines' KV caches, by PyTorch's names. Encodings that read elements need them."""

from typing import Any, Optional

# By the engines' own names. Other types of KV caches, such as 4-bit ones and 8-bit ones with scales between the elements, are of no single type.
BY_NAME = {
    **{name: name for name in ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")},
    "bf16": "bfloat16",
    "half": "float16",
    "float": "float32",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "fp8_inc": "float8_e4m3fn",
}


def of_kv_cache(name: Any) -> Optional[str]:
    """The type of the elements of a KV cache of this dtype, ``None`` if they are of several types or no floats."""
    return BY_NAME.get(str(name).removeprefix("torch."))
