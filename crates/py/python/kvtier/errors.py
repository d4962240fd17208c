"""Errors, by the remedy that the caller has."""

from typing import Optional


class Error(Exception):
    """An operation failed."""


class Invalid(Error, ValueError):
    """The operation can never succeed: fix the argument or the configuration."""


class Unsupported(Error):
    """This tier, build or machine does not support the operation."""


class Full(Error):
    """The tier is full, and no chunk can be evicted."""


class Corrupt(Error):
    """The stored bytes are not those that were saved; the chunk was quarantined."""


class Io(Error, OSError):
    """The medium failed."""


class Timeout(Error, TimeoutError):
    """The deadline passed."""


class Denied(Error, PermissionError):
    """The medium denied access: fix credentials or permissions."""


class Throttled(Error):
    """Too many operations are in flight: try again later."""


class Closed(Error):
    """The store was closed: open another."""


class Canceled(Error):
    """The operation was cancelled."""


_KINDS: dict[str, type[Error]] = {
    kind.__name__: kind
    for kind in (Invalid, Unsupported, Full, Corrupt, Io, Timeout, Denied, Throttled, Closed, Canceled)
}


def from_batch(error: tuple[str, str]) -> Error:
    """The exception for a kind and a text."""
    kind, text = error
    return _KINDS.get(kind, Error)(text)


def check(error: Optional[tuple[str, str]]) -> None:
    """Raises the error of a batch, if it has one."""
    if error is not None:
        raise from_batch(error)
