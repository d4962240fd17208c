"""The shared core of the adapters that run inside an inference engine: opens tiers, registers the engine's memory, and ends in order."""

import difflib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from . import _log, _native

# Beyond the deadline of a job: the time for a medium to return memory at shutdown.
SHUTDOWN_GRACE = 60.0
# How often a drain that does not end is logged, and the least seconds between two log lines about failed jobs.
DRAIN_LOG_SECONDS = 5.0
LOG_SECONDS = 1.0
# The most different causes that are logged once each.
CAUSES_MAX = 64


def check_params(where: str, given: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Refuses parameters that do not exist.

    :raises ValueError: with the key and a remedy.
    """
    allowed = sorted(allowed)
    for name in given:
        near = difflib.get_close_matches(name, allowed, 1)
        remedy = f"write {near[0]!r}" if near else f"leave it out; the parameters are {', '.join(allowed)}"
        raise ValueError(f"{where}: unknown parameter {name!r}: {remedy}")


def positive(where: str, name: str, value: Any) -> float:
    """A number above 0.

    :raises ValueError: for anything else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{where}: {name} = {value!r} is no number of seconds above 0: write for example {name}: 30")
    return float(value)


def version_numbers(version: str, count: int) -> tuple[int, ...]:
    """The first numbers of a version, fewer if it has no more."""
    numbers = []
    for part in version.split(".")[:count]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def check_version(engine: str, version: str, supported: Sequence[tuple[int, ...]], document: str) -> None:
    """Checks the version of an engine.

    :raises ImportError: for one that is not supported, with the remedy.
    """
    if version_numbers(version, len(supported[0])) in supported:
        return
    names = " and ".join(".".join(map(str, one)) for one in supported)
    raise ImportError(
        f"kvtier {_native.__version__} supports {engine} {names}, and this is {engine} {version}, whose interface for tiers may differ: install "
        f"one of these, or a kvtier that names this version in {document}"
    )


class Core:
    """Open tiers, the engine's memory and its jobs. vLLM's scheduler calls it, one thread at a time; SGLang's threads call the native pools."""

    def __init__(
        self, where: str, tiers: Any, config: Any, timeout_seconds: float, metrics: Optional[str] = None
    ) -> None:
        if (tiers is None) == (config is None):
            raise ValueError(
                f'{where}: give either tiers, such as [{{"type": "file", "path": "/mnt/nvme/kv", "bytes": "500GiB"}}], or config, '
                "the path of a configuration file"
            )
        try:
            self.native = _native.EngineTiers({"tiers": tiers, "config": config}, timeout_seconds=timeout_seconds, metrics=metrics)
        except (ValueError, OSError) as e:
            raise type(e)(f"{where}: {e}") from e
        # For status and metrics, until `close`.
        self.tiers: Optional[_native.Tiers] = self.native.tiers()
        self.name = self.tiers.name
        self.timeout_seconds = timeout_seconds
        self._regions: list[_native.Region] = []
        self._is_closed = False
        self._last_log = 0.0
        self._suppressed = 0
        self._logged: set[str] = set()

    def register(self, memory: Any) -> None:
        """Registers memory of jobs, beside what was registered before. It stays exported until ``close``."""
        region = _native.Region(memory)
        self._regions.append(region)
        for outcome in self.native.register(region):
            _log.logger.info("registered %.1f GiB: %s", len(region) / 2**30, outcome)

    def log_failure(self, what: str, error: Optional[tuple[str, str]]) -> None:
        """Logs the error of a job, at most one line a second."""
        now = time.monotonic()
        if now - self._last_log < LOG_SECONDS:
            self._suppressed += 1
            return
        self._last_log = now
        more = f" ({self._suppressed} similar lines suppressed)" if self._suppressed else ""
        self._suppressed = 0
        _log.write(logging.WARNING, "%s: %s%s", what, ": ".join(error) if error else "chunks are missing", more)

    def log_once(self, text: str) -> None:
        """Logs a warning the first time. Later ones show in a counter."""
        if text not in self._logged and len(self._logged) < CAUSES_MAX:
            self._logged.add(text)
            _log.write(logging.WARNING, "%s", text)

    def drain(self) -> None:
        """Waits until every job ended and no medium uses the memory."""
        while not self.native.drain(DRAIN_LOG_SECONDS):
            _log.write(logging.WARNING, "waiting for %d jobs whose memory a medium still uses", self.native.pending)

    def close(self) -> None:
        """Ends all work and releases the memory.

        :raises TimeoutError: if a medium still uses the memory; it must then stay mapped.
        """
        if self._is_closed:
            return
        seconds = self.timeout_seconds + SHUTDOWN_GRACE
        if not self.native.drain(seconds):
            raise TimeoutError(f"kvtier: after {seconds:.0f} s a medium still uses memory of a job; the memory stays registered")
        # The tiers end with their last holder.
        self.tiers = None
        if not self.native.close():
            _log.write(logging.WARNING, "a medium does not answer: its threads end when it does")
        for region in self._regions:
            region.release()
        self._is_closed = True
