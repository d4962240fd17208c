"""What can go wrong, by what the caller may do about it."""

from typing import Optional


class Error(Exception):
    """Anything that went wrong below."""


class Invalid(Error, ValueError):
    """It can never succeed as it stands: fix the argument or the configuration."""


class Unsupported(Error):
    """This tier, build or machine cannot do it."""


class Full(Error):
    """No room, and nothing that could go."""


class Corrupt(Error):
    """What lay there is not what was saved; it was set aside."""


class Io(Error, OSError):
    """The medium failed."""


class Timeout(Error, TimeoutError):
    """The deadline passed first."""


class Denied(Error, PermissionError):
    """The medium refused us: fix credentials or permissions."""


class Throttled(Error):
    """Too much in flight: wait, and try again."""


class Closed(Error):
    """It was closed: open another."""


class Canceled(Error):
    """Somebody asked for the end."""


_KINDS: dict[str, type[Error]] = {
    kind.__name__: kind
    for kind in (Invalid, Unsupported, Full, Corrupt, Io, Timeout, Denied, Throttled, Closed, Canceled)
}


def of(fault: tuple[str, str]) -> Error:
    """The exception for a kind and a text."""
    kind, text = fault
    return _KINDS.get(kind, Error)(text)


def check(fault: Optional[tuple[str, str]]) -> None:
    """Raises what went wrong, if anything did."""
    if fault is not None:
        raise of(fault)
