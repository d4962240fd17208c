"""Where the pages of SGLang's host pools lie: the buffers of a pool, and the pieces of its pages in the order in which a chunk has them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch

# The attributes with the buffers of a pool. ``kv_buffer`` mostly holds all of it.
BUFFERS = ("kv_buffer", "k_buffer", "v_buffer", "index_k_buffer", "index_k_scale_buffer")


@dataclass(frozen=True)
class Pieces:
    """The memory of some pages, page by page. Each page has as many pieces."""

    addresses: list[int]
    lengths: list[int]

    def take(self, places: Sequence[int]) -> "Pieces":
        """The pieces at these places."""
        return Pieces([self.addresses[at] for at in places], [self.lengths[at] for at in places])


class PageMap:
    """The pieces of a host pool's pages.

    ``order`` is ``"flat"`` if the pieces of a page are in the order of the pool's flat pages (``get_data_page``), so that both have the same bytes.
    Otherwise it is ``"pieces"``.
    """

    def __init__(self, pool: Any, split: int = 1) -> None:
        self.pool = pool
        # Heads of a page are split into as many chunks.
        self.split = split
        # Tokens of a page, in the pool's indices.
        self.page_tokens = page_tokens(pool)
        first = torch.arange(self.page_tokens, dtype=torch.int64)
        found = self._found(first)
        self.pieces_per_page = len(found.addresses)
        # Of one chunk.
        count = self.pieces_per_page // split
        flat = _flat_order(pool, Pieces(found.addresses[:count], found.lengths[:count]), split)
        is_in_order = flat == list(range(count))
        self.order = "flat" if is_in_order or (flat and split == 1) else "pieces"
        self._places = None if is_in_order or self.order == "pieces" else flat
        self.lengths = self.pieces(first).lengths[:count]
        self.chunk_bytes = sum(self.lengths)

    def pieces(self, indices: Any) -> Pieces:
        """The pieces of the pages of these indices."""
        found = self._found(indices)
        if self._places is None:
            return found
        count = self.pieces_per_page
        return found.take([page + at for page in range(0, len(found.addresses), count) for at in self._places])

    def _found(self, indices: Any) -> Pieces:
        if self.split > 1:
            return Pieces(*self.pool.get_split_heads_page_buffer_meta(indices, self.split))
        if getattr(self.pool, "layout", None) == "page_unified":
            return self._unified(indices)
        return Pieces(*self.pool.get_page_buffer_meta(indices))

    def _unified(self, indices: Any) -> Pieces:
        """Pages of the layout ``page_unified``, each of which is one block."""
        block = self.pool.page_unified_layout.bytes_per_page
        base = self.pool.kv_buffer.data_ptr()
        pages = [index // self.page_tokens for index in indices.tolist()[:: self.page_tokens]]
        return Pieces([base + page * block for page in pages], [block] * len(pages))


def page_tokens(pool: Any) -> int:
    """The indices of a page."""
    return int(getattr(pool, "logical_page_size", None) or getattr(pool, "page_size", 1) or 1)


def is_logical(pool: Any) -> bool:
    """Whether the pool has no memory, but only counts the pages of others."""
    return getattr(pool, "kv_buffer", None) is None and not hasattr(pool, "get_hybrid_pool_buffer")


def buffers(pool: Any) -> list[Any]:
    """The tensors that hold the pages of a pool, none of them inside of another."""
    found = [tensor for name in BUFFERS for tensor in _tensors(getattr(pool, name, None))]
    if hasattr(pool, "get_hybrid_pool_buffer"):
        found.extend(_tensors(pool.get_hybrid_pool_buffer()))
    # The longest of those that begin at one address comes first.
    found.sort(key=lambda tensor: (tensor.data_ptr(), -_bytes(tensor)))
    outer: list[Any] = []
    for tensor in found:
        if not outer or tensor.data_ptr() + _bytes(tensor) > outer[-1].data_ptr() + _bytes(outer[-1]):
            outer.append(tensor)
    return outer


def as_buffer(tensor: Any) -> Any:
    """The bytes of a tensor, without a copy.

    :raises ValueError: for a tensor that is not on the host or not contiguous.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"a tensor on {tensor.device} of shape {tuple(tensor.shape)}: give one that is contiguous and in host memory")
    return tensor.detach().view(-1).view(torch.uint8).numpy()


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _tensors(value: Any) -> Iterable[Any]:
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in _tensors(one)]
    is_tensor = hasattr(value, "data_ptr") and _bytes(value) > 0
    return [value] if is_tensor else []


def _flat_order(pool: Any, found: Pieces, split: int) -> Optional[list[int]]:
    """The places of a chunk's pieces in the order of a flat page with the heads of this chunk alone; ``None`` if they are not its parts."""
    try:
        page = pool.get_data_page(0, flat=False)
        if split > 1:
            # The layout ``page_head``: keys and values, page, heads.
            page = page[:, :, : page.shape[2] // split]
    except Exception:
        # Pools without flat pages.
        return None
    runs = _runs(page)
    places = {piece: at for at, piece in enumerate(zip(found.addresses, found.lengths))}
    if runs is None or len(places) != len(runs) or any(run not in places for run in runs):
        return None
    return [places[run] for run in runs]


def _runs(page: Any) -> Optional[list[tuple[int, int]]]:
    """The parts of a view that are contiguous, in its own order: the address and the length of each."""
    size = page.element_size()
    shape, strides = list(page.shape), list(page.stride())
    run = 1
    while shape and (shape[-1] == 1 or strides[-1] == run):
        run *= shape.pop()
        strides.pop()
    count = 1
    for length in shape:
        count *= length
    # A page of thousands of pieces is not in the order of pieces.
    if count > 4096:
        return None
    offsets = [0]
    for length, stride in zip(shape, strides):
        offsets = [offset + at * stride for offset in offsets for at in range(length)]
    return [(page.data_ptr() + offset * size, run * size) for offset in offsets]
