"""kvtier's numbers in vLLM's own Prometheus output. docs/METRICS.md lists them."""

import time
from dataclasses import dataclass
from typing import Any, Optional

from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)

from .. import _native

# The least seconds between two readings of the tiers, which vLLM asks for in every step.
READ_SECONDS = 1.0
# The label with the name of a tier of kvtier.
TIER = "kvtier_tier"
SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class Counter:
    """A counter of a tier, and its name in vLLM's output."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


PREFIX = "vllm:kvtier_"
# What vLLM asked for and got, whichever of the tiers had it: the hits and the misses together are the chunks.
LOADS = f"{PREFIX}load_chunks"
HITS = f"{PREFIX}load_hits"
MISSES = f"{PREFIX}load_misses"
# What each tier was asked for: a chunk that one tier lacks may be a hit in the next.
TIER_MISSES = f"{PREFIX}tier_misses"
TIER_MISSES_HELP = "Chunks that a tier was asked for and did not have, by reason: absent, corrupt, length, unverified, codec, key or too_large."
COUNTERS = {
    "hits": Counter(f"{PREFIX}tier_hits", "Chunks that a tier was asked for and had, with verified bytes."),
    "misses_absent": Counter(TIER_MISSES, TIER_MISSES_HELP, ("absent",)),
    "misses_corrupt": Counter(TIER_MISSES, TIER_MISSES_HELP, ("corrupt",)),
    "misses_length": Counter(TIER_MISSES, TIER_MISSES_HELP, ("length",)),
    "misses_unverified": Counter(TIER_MISSES, TIER_MISSES_HELP, ("unverified",)),
    "misses_codec": Counter(TIER_MISSES, TIER_MISSES_HELP, ("codec",)),
    "misses_key": Counter(TIER_MISSES, TIER_MISSES_HELP, ("key",)),
    "misses_too_large": Counter(TIER_MISSES, TIER_MISSES_HELP, ("too_large",)),
    "loaded_bytes": Counter(f"{PREFIX}loaded_bytes", "Bytes loaded."),
    "stored": Counter(f"{PREFIX}stored_chunks", "Chunks stored."),
    "saved_bytes": Counter(f"{PREFIX}stored_bytes", "Bytes stored."),
    "shed": Counter(f"{PREFIX}shed_chunks", "Chunks not stored for lack of space."),
    "evicted": Counter(f"{PREFIX}evicted_chunks", "Chunks evicted to free space."),
    "io_errors": Counter(f"{PREFIX}io_errors", "Transfers and system calls that failed."),
    "stranded": Counter(f"{PREFIX}stranded_operations", "Operations past their deadline whose memory the kernel still used."),
}
LOOKUPS = f"{PREFIX}lookups"
IGNORED = f"{PREFIX}ignored_params"
REFUSED = f"{PREFIX}refused_requests"
DROPPED = f"{PREFIX}dropped_events"
JOB_SECONDS = f"{PREFIX}job_seconds"
JOBS_FAILED = f"{PREFIX}failed_jobs"
OVERDUE = f"{PREFIX}overdue_loads"
USED = f"{PREFIX}used_bytes"
CAPACITY = f"{PREFIX}capacity_bytes"
HEALTHY = f"{PREFIX}healthy"


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """The metrics that a tier may emit."""
    found: dict[str, OffloadingMetricMetadata] = {
        counter.name: OffloadingCounterMetadata(counter.help, (TIER, *(("reason",) if counter.labels else ())))
        for counter in COUNTERS.values()
    }
    found[LOOKUPS] = OffloadingCounterMetadata(
        "Lookups of single chunks, by answer: hit, miss, retry while a bucket is asked, or failure for a batch of lookups of which a "
        "medium left a key without an answer.",
        ("answer",),
    )
    found[LOADS] = OffloadingCounterMetadata("Chunks of loads that ended.")
    found[HITS] = OffloadingCounterMetadata("Chunks loaded, with verified bytes.")
    found[MISSES] = OffloadingCounterMetadata(
        "Chunks of loads that were not loaded, by reason: absent, corrupt, length, unverified, slow (computing is faster), codec (an encoding "
        "that is not decoded here), key (its encryption key is not loaded), too_large (to be decoded here), late "
        "(the deadline passed), failed (a medium answered with an error), invalid (the key or the memory), or refused (the request).",
        ("reason",),
    )
    found[IGNORED] = OffloadingCounterMetadata("Unknown or invalid parameters of requests that were ignored.")
    found[REFUSED] = OffloadingCounterMetadata(
        "Requests that neither load nor store, by reason: tenant (theirs is invalid) or identity (that of the engine cannot be had).", ("reason",)
    )
    found[DROPPED] = OffloadingCounterMetadata("KV events that were dropped because too many waited.")
    found[JOB_SECONDS] = OffloadingHistogramMetadata(
        "Duration of jobs from their submission to their end, by direction.", ("direction",), SECONDS_BUCKETS
    )
    found[JOBS_FAILED] = OffloadingCounterMetadata("Jobs that did not transfer all their chunks, by direction.", ("direction",))
    found[OVERDUE] = OffloadingGaugeMetadata("Loads past their deadline whose memory a medium still uses. While there are any, all lookups are misses.")
    found[USED] = OffloadingGaugeMetadata("Bytes in use, by all processes that share the tier.", (TIER,))
    found[CAPACITY] = OffloadingGaugeMetadata("The cap of the tier.", (TIER,))
    found[HEALTHY] = OffloadingGaugeMetadata("1 if the tier works, else 0.", (TIER,))
    return found


class Stats:
    """Collects what changed since the last reading."""

    def __init__(self, tiers: _native.Tiers, native: _native.EngineTiers) -> None:
        self._tiers: Optional[_native.Tiers] = tiers
        self._native = native
        self._last: dict[tuple[str, tuple[str, ...]], int] = {}
        self._pending: dict[tuple[str, tuple[str, ...]], int] = {}
        self._seconds: list[tuple[str, float]] = []
        self._next_read = 0.0

    def count(self, name: str, labels: tuple[str, ...] = (), by: int = 1) -> None:
        """Counts an event of the adapter itself."""
        if by:
            self._pending[name, labels] = self._pending.get((name, labels), 0) + by

    def unloaded(self, chunks: int, reason: str) -> None:
        """Counts the chunks of a load that no tier was asked for."""
        self.count(LOADS, by=chunks)
        self.count(MISSES, (reason,), chunks)

    def close(self) -> None:
        """Lets go of the tiers, which end with their last holder."""
        self._tiers = None

    def job(self, direction: str, seconds: float, is_whole: bool) -> None:
        """Records a job that ended."""
        self._seconds.append((direction, seconds))
        if not is_whole:
            self.count(JOBS_FAILED, (direction,))

    def take(self) -> Optional[Any]:
        """The changes since the last call, as vLLM's stats; ``None`` if the last reading was just now."""
        now = time.monotonic()
        if self._tiers is None or now < self._next_read:
            return None
        self._next_read = now + READ_SECONDS
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

        stats = OffloadingConnectorStats()
        for (name, labels), by in self._pending.items():
            stats.increase_counter(name, by, labels)
        for direction, seconds in self._seconds:
            stats.observe_histogram(JOB_SECONDS, seconds, (direction,))
        self._pending, self._seconds = {}, []
        for answer, value in self._native.lookup_counts():
            self._increase(stats, LOOKUPS, (answer,), value)
        hits, misses = self._native.load_counts()
        self._increase(stats, LOADS, (), hits + sum(value for _, value in misses))
        self._increase(stats, HITS, (), hits)
        for reason, value in misses:
            self._increase(stats, MISSES, (reason,), value)
        stats.set_gauge(OVERDUE, self._native.overdue_loads())
        for tier in self._tiers.tier_status():
            self._add_tier(stats, tier)
        return stats

    def _add_tier(self, stats: Any, tier: dict[str, Any]) -> None:
        name = tier["name"]
        for counter, value in tier["counters"]:
            if known := COUNTERS.get(counter):
                self._increase(stats, known.name, (name, *known.labels), value)
        stats.set_gauge(HEALTHY, int(tier["healthy"]), (name,))
        for gauge, field in ((USED, "used_bytes"), (CAPACITY, "capacity_bytes")):
            if tier[field] is not None:
                stats.set_gauge(gauge, tier[field], (name,))

    def _increase(self, stats: Any, name: str, labels: tuple[str, ...], value: int) -> None:
        by = value - self._last.get((name, labels), 0)
        if by > 0:
            self._last[name, labels] = value
            stats.increase_counter(name, by, labels)
