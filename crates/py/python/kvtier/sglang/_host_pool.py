"""One host pool of SGLang and its pages in kvtier's tiers."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from .. import _engine, _log, _native
from . import _host_memory, _identity

# Classes of pools that hold the same bytes on all ranks of tensor parallelism, if the model's KV is so. Other pools of such a model, such as the
# states of Mamba layers and draft models with heads, differ by rank.
REPLICATED = ("MLATokenToKVPoolHost", "DSAIndexerPoolHost", "DeepSeekV4PagedHostPool", "DeepSeekV4StateHostPool", "LogicalHostPool")

# The pool that SGLang stores on every rank, of a model with replicated KV too.
MAMBA = "mamba"


@dataclass(frozen=True)
class Chain:
    """Where the pages of a call are in their prefix chain."""

    depth: Optional[int] = None
    parent: Optional[str] = None

    @classmethod
    def of_call(cls, extra_info: Any) -> "Chain":
        """What SGLang says of it, if ``hicache_storage_pass_prefix_keys`` is set."""
        prefix = getattr(extra_info, "prefix_keys", None)
        return cls() if prefix is None else cls(len(prefix), prefix[-1] if prefix else None)


@dataclass
class Moved:
    """What a call moved: for each page whether, and the seconds and the bytes of the chunks."""

    done: list[bool]
    seconds: float = 0.0
    bytes: int = 0
    error: Optional[tuple[str, str]] = None

    def add(self, transfer: "_native.Transfer") -> None:
        """Adds the transfer of one shard of the pages. A page was moved if all its shards were."""
        done, error, seconds, transferred = transfer
        if done is not None:
            self.done = [before and now for before, now in zip(self.done, done)]
        self.error = self.error or error
        self.seconds += seconds
        self.bytes += transferred


class HostPool:
    """A host pool, registered with kvtier's tiers. Any number of threads may call at once."""

    def __init__(self, core: _engine.Core, config: Any, names: _identity.Names, name: str, pool: Any) -> None:
        self.name = name
        self.pool = pool
        self.is_replicated = bool(config.is_mla_model) and any(one.__name__ in REPLICATED for one in type(pool).__mro__)
        # Of ranks with the same bytes one writes.
        self.is_writer = bool(config.is_storage_writer) or not self.is_replicated
        self.is_logical = _host_memory.is_logical(pool)
        self.shards: list[_native.EnginePool] = []
        self.flat: Optional[_native.EnginePool] = None
        self.model = f"{config.model_name or 'model'}/{name}".replace("@", "_")
        self.ranks: set[int] = set()
        if self.is_logical:
            return
        if config.is_mla_model and config.tp_size > 1 and not self.is_replicated and name != MAMBA:
            _log.write(
                logging.WARNING,
                "SGLang stores pool %r on one of %d ranks only, and the others have bytes of their own: pages that need it will not be found",
                name,
                config.tp_size,
            )
        split = 1 if self.is_replicated else _identity.split_factor(config)
        self.pages = self._page_map(split)
        self.element_type = _identity.element_type(name, pool)
        for tensor in _host_memory.buffers(pool):
            core.register(_host_memory.as_buffer(tensor))
        for shard in _identity.shards(config, self.is_replicated):
            fields = _identity.fields(config, names, name, self.pages, shard, self.is_replicated)
            self.shards.append(self._native_pool(core, fields, shard.rank))
        if self.pages.order == "flat" and split == 1:
            self.flat = self.shards[0]
        else:
            self._open_flat(core, fields, config.tp_rank)

    def _page_map(self, split: int) -> _host_memory.PageMap:
        try:
            return _host_memory.PageMap(self.pool, split)
        except (NotImplementedError, ValueError, AttributeError) as e:
            layout = getattr(self.pool, "layout", None)
            raise ValueError(
                f"kvtier.sglang: pool {self.name!r} ({type(self.pool).__name__}, layout {layout}) does not say where its pages are: set "
                f"--hicache-mem-layout page_first or page_first_direct, if that is the cause ({type(e).__name__}: {e})"
            ) from e

    def _open_flat(self, core: _engine.Core, fields: dict[str, Any], rank: int) -> None:
        """Pages as flat tensors, whose bytes have another order than the pieces of the pool's memory."""
        try:
            page = self.pool.get_dummy_flat_data_page()
        except (NotImplementedError, ValueError, AttributeError):
            return
        page_bytes = page.numel() * page.element_size()
        fields = {**fields, "order": "flat tensors", "tp": {"rank": rank, "of": fields["tp"]}, "pieces": [page_bytes]}
        self.flat = self._native_pool(core, fields, rank, page_bytes)

    def _native_pool(self, core: _engine.Core, fields: dict[str, Any], rank: int, page_bytes: int = 0) -> _native.EnginePool:
        text = _identity.text(fields)
        page_bytes = page_bytes or self.pages.chunk_bytes
        native = core.native.pool((self.model, rank, self.pages.page_tokens, page_bytes, text, self.element_type))
        self.ranks.add(rank)
        _log.logger.info("pages of pool %s have the namespace %s: %s", self.name, native.digest, text)
        return native

    def prefix(self, keys: Sequence[str]) -> int:
        """How many pages are stored, from the first one."""
        found = len(keys)
        for shard in self.shards:
            found = shard.prefix(keys[:found] if found < len(keys) else keys)
        return found

    def present(self, keys: Sequence[str]) -> list[bool]:
        """For each page whether it is stored."""
        by_shard = [shard.present(keys) for shard in self.shards]
        return [all(found) for found in zip(*by_shard)]

    def load(self, keys: Sequence[str], indices: Any, chain: Chain) -> Moved:
        """Loads pages into the pool's memory."""
        return self._transfer(keys, indices, chain, lambda shard: shard.load)

    def save(self, keys: Sequence[str], indices: Any, chain: Chain, together: Sequence[_native.EnginePool] = ()) -> Moved:
        """Saves pages from the pool's memory. Each is one atomic set with the pages of its name of the pools ``together``."""
        return self._transfer(keys, indices, chain, lambda shard: lambda pages: shard.save(pages, (), together))

    def _transfer(self, keys: Sequence[str], indices: Any, chain: Chain, call: Callable[[_native.EnginePool], Any]) -> Moved:
        moved = Moved([True] * len(keys))
        if not keys:
            return moved
        tokens = self.pages.page_tokens
        given = 0 if indices is None else len(indices)
        if given != len(keys) * tokens:
            raise ValueError(f"{len(keys)} pages of {tokens} tokens and {given} indices of pool {self.name!r}")
        pieces = self.pages.pieces(indices)
        count = len(self.pages.lengths)
        for at, shard in enumerate(self.shards):
            part = pieces
            if len(self.shards) > 1:
                pages = range(at * count, len(pieces.addresses), self.pages.pieces_per_page)
                part = pieces.take([first + piece for first in pages for piece in range(count)])
            moved.add(call(shard)((keys, part.addresses, part.lengths, chain.depth, chain.parent)))
        return moved

    def remove(self, keys: Sequence[str]) -> int:
        """Deletes pages."""
        shards = self.shards if self.flat is None or self.flat in self.shards else [*self.shards, self.flat]
        return sum(shard.remove(keys) for shard in shards)
