"""Usage and status of open tiers."""

from dataclasses import dataclass
from typing import Optional

from . import _native


@dataclass(frozen=True)
class Usage:
    """The usage of a store. ``None`` is an unknown value, or no cap."""

    used_bytes: Optional[int]
    capacity_bytes: Optional[int]
    chunks: int
    bytes_by_salt: dict[str, int]


@dataclass(frozen=True)
class TierStatus:
    """The status of one tier: health, counters and usage. ``None`` is an unknown value, or no cap."""

    name: str
    healthy: bool
    reasons: list[str]
    counters: dict[str, int]
    used_bytes: Optional[int]
    capacity_bytes: Optional[int]
    chunks: int


@dataclass(frozen=True)
class Status:
    """The status of a store: health with reasons, counters, and the status of each tier, the fastest first."""

    healthy: bool
    reasons: list[str]
    counters: dict[str, int]
    tiers: list[TierStatus]


class WithStatus:
    """The usage, the status and the metrics of open tiers."""

    _tiers: _native.Tiers

    def usage(self) -> Usage:
        """The usage of the tiers, by all processes that share them."""
        used, capacity, chunks, tenants = self._tiers.usage()
        return Usage(used, capacity, chunks, {salt: used for salt, used, _ in tenants if used > 0})

    def status(self) -> Status:
        """Health, counters and the status of each tier."""
        healthy, reasons, counters = self._tiers.status()
        each = [TierStatus(**{**tier, "counters": dict(tier["counters"])}) for tier in self._tiers.tier_status()]
        return Status(healthy, reasons, dict(counters), each)

    @property
    def metrics_address(self) -> Optional[str]:
        """The address of the Prometheus endpoint as ``HOST:PORT``; ``None`` without one."""
        return self._tiers.metrics_address
