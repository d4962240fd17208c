"""kvtier's log lines. They go to the host's handlers; without such a handler they go to standard error, with time, level and name.

The functions that write a line never raise, whatever a handler of the host does: their callers are about to return a result, and must not
lose it.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any, Optional

logger = logging.getLogger("kvtier")


def batch_error(what: str, error: Optional[tuple[str, str]]) -> None:
    """Logs the error of a batch, if it has one."""
    if error is not None:
        with contextlib.suppress(Exception):
            logger.warning("%s: %s: %s", what, *error)


def write(level: int, text: str, *args: object) -> None:
    """Writes a line."""
    with contextlib.suppress(Exception):
        logger.log(level, text, *args)


def opened(tiers: object) -> None:
    """Logs that tiers were opened."""
    with contextlib.suppress(Exception):
        logger.info("opened %s", tiers)


@contextlib.contextmanager
def listener_errors() -> Iterator[None]:
    """Logs what a listener of the host raises, and continues."""
    try:
        yield
    except Exception:
        with contextlib.suppress(Exception):
            logger.exception("a listener failed")


class _Fallback(logging.Handler):
    """Prints lines that no handler of the host receives. Python's handler of last resort prints the bare text only."""

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
    """Whether a handler other than the fallback receives kvtier's lines."""
    at: Any = logger
    while at is not None:
        if any(not isinstance(handler, _Fallback) for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


def follow_lmcache() -> None:
    """Gives the logger ``kvtier`` the handler, format and level of LMCache's loggers.

    LMCache configures each of its loggers separately and not the root logger, so that kvtier's would inherit nothing. A configuration of the
    host, of this logger or of the root, stays as it is.
    """
    if _host_has_handlers():
        return
    from lmcache.logging import init_logger

    init_logger(logger.name)


def follow_vllm() -> None:
    """Gives the logger ``kvtier`` the handlers and the level of vLLM's. A configuration of the host stays as it is."""
    vllm = logging.getLogger("vllm")
    if _host_has_handlers() or not vllm.handlers:
        return
    for handler in vllm.handlers:
        logger.addHandler(handler)
    logger.setLevel(vllm.level)


if not any(isinstance(handler, _Fallback) for handler in logger.handlers):
    logger.addHandler(_Fallback())
