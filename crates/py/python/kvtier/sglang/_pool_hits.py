"""The prefixes of a request that can be restored from several pools, by the hit policy of each."""

from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer, PoolTransferResult

# For each of some pages whether a pool has it.
Present = Callable[[Any, Sequence[str]], list[bool]]
# How many of some pages a pool has from the first one.
Prefix = Callable[[Any, Sequence[str]], int]


def restorable(keys: Sequence[str], kv_pages: int, transfers: Sequence[PoolTransfer], prefix: Prefix, present: Present) -> PoolTransferResult:
    """The longest prefix that every pool can restore, what each pool has, and all lengths that every pool can restore.

    ``kv_pages`` is the length of the prefix in the KV pool. A pool with ``ALL_PAGES`` needs all pages of a prefix. One with ``TRAILING_PAGES`` needs
    the last of them only, so that a longer prefix may be restored and a shorter one not. One with ``BLOCK_GROUPS`` is another form of the same pages,
    and limits nothing.
    """
    hits: dict[str, int] = {PoolName.KV: kv_pages} if kv_pages else {}
    lengths = list(range(1, kv_pages + 1))
    for transfer in transfers:
        if not lengths:
            break
        if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
            covered = _block_groups(transfer, kv_pages, prefix)
            if covered:
                hits[transfer.name] = covered
            continue
        if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
            boundary = prefix(transfer.name, keys[:kv_pages])
            of_pool = set(range(1, boundary + 1))
        elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
            of_pool = _trailing(present(transfer.name, keys[:kv_pages]), max(1, len(transfer.keys or ())))
            boundary = max(of_pool, default=0)
        else:
            raise ValueError(f"kvtier.sglang: the hit policy {transfer.hit_policy} of pool {transfer.name} is not supported")
        if boundary:
            hits[transfer.name] = boundary
        lengths = [length for length in lengths if length in of_pool]
    return PoolTransferResult(lengths[-1] if lengths else 0, hits, lengths)


def _trailing(present: Sequence[bool], window: int) -> set[int]:
    """The lengths of prefixes whose last pages are all there, at most ``window`` of them."""
    lengths, run = set(), 0
    for length, is_there in enumerate(present, 1):
        run = run + 1 if is_there else 0
        if run >= min(window, length):
            lengths.add(length)
    return lengths


def _block_groups(transfer: PoolTransfer, kv_pages: int, prefix: Prefix) -> int:
    """The pages that the leading complete groups of a pool cover: the keys of a group stand for one block of pages."""
    group, block = transfer.group_pages, transfer.block_pages
    if not transfer.keys or group <= 0 or block <= 0:
        return 0
    groups = prefix(transfer.name, transfer.keys) // group
    return int(min(groups * block, kv_pages // block * block))
