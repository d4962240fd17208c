"""What went wrong, told to the log. Nothing here raises, whatever somebody made of the log: who tells of an end must not lose it."""

import contextlib
from collections.abc import Iterator
from typing import Optional

from ._log import logger


def fault(what: str, fault: Optional[tuple[str, str]]) -> None:
    """Of a batch."""
    if fault is not None:
        with contextlib.suppress(Exception):
            logger.warning("%s: %s: %s", what, *fault)


def opened(tiers: object) -> None:
    """Of tiers that were opened."""
    with contextlib.suppress(Exception):
        logger.info("opened %s", tiers)


@contextlib.contextmanager
def listeners() -> Iterator[None]:
    """Of whoever listens to what became of keys."""
    try:
        yield
    except Exception:
        with contextlib.suppress(Exception):
            logger.exception("a listener failed")
