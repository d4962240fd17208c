"""kvtier's numbers in SGLang's own metrics of its storage backend."""

import threading
from typing import Any, Optional

from ._host_pool import Moved


class Stats:
    """What was moved since SGLang asked last. Its I/O threads count, and its scheduler asks."""

    def __init__(self, is_enabled: bool) -> None:
        self._is_enabled = is_enabled
        self._lock = threading.Lock()
        # For loads and stores: the pages, and the GB/s of each call.
        self._pages: dict[bool, list[int]] = {True: [], False: []}
        self._bandwidths: dict[bool, list[float]] = {True: [], False: []}

    def moved(self, is_load: bool, moved: Moved) -> None:
        """Counts a call."""
        if not self._is_enabled or moved.bytes == 0:
            return
        with self._lock:
            self._pages[is_load].append(sum(moved.done))
            self._bandwidths[is_load].append(moved.bytes / 2**30 / max(moved.seconds, 1e-9))

    def take(self) -> Optional[Any]:
        """SGLang's object for these numbers; ``None`` if its metrics are disabled."""
        if not self._is_enabled:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._lock:
            pages, bandwidths = self._pages, self._bandwidths
            self._pages, self._bandwidths = {True: [], False: []}, {True: [], False: []}
        return StorageMetrics(
            prefetch_pgs=pages[True],
            backup_pgs=pages[False],
            prefetch_bandwidth=bandwidths[True],
            backup_bandwidth=bandwidths[False],
        )
