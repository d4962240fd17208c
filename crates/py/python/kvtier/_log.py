"""Where kvtier's log lines go: to the host's handlers, and where the host has none to standard error, with time, level and name."""

import logging
import sys
from typing import Any

logger = logging.getLogger("kvtier")


class _Fallback(logging.Handler):
    """Prints what no handler of the host's takes. Python's own last resort would print the bare text."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if _host_has_handlers():
            return
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def _host_has_handlers() -> bool:
    """Whether anybody else's handler gets our lines."""
    at: Any = logger
    while at is not None:
        if any(not isinstance(handler, _Fallback) for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


def follow_lmcache() -> None:
    """Gives our lines the handler, the form and the level that LMCache gives its own. It configures each of its loggers by itself and leaves
    the root logger alone, so that nothing of it would reach us. Where the host configured ours or the root, that stays."""
    if _host_has_handlers():
        return
    from lmcache.logging import init_logger

    init_logger(logger.name)


if not any(isinstance(handler, _Fallback) for handler in logger.handlers):
    logger.addHandler(_Fallback())
