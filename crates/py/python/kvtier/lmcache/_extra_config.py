"""Settings of LMCache's ``extra_config`` that all in-process plugins have."""

import difflib
from collections.abc import Collection, Iterable
from typing import Any, Optional

from lmcache.v1.metadata import LMCacheMetadata

# Settings of kvtier that belong to no single plugin.
OWN = ("kvtier.gds_shape",)


def refuse_unknown(extra: dict[str, Any], place: str, known: Collection[str], others: Iterable[str] = ()) -> None:
    """Refuses unknown settings below ``place``: a misspelled cap would mean no cap. ``others`` are the prefixes of other plugins, which may
    begin with this one's."""
    longer = [f"{other}." for other in others if other.startswith(f"{place}.")]
    own = {f"{place}.{name}" for name in known}
    for name in map(str, extra):
        is_of_plugin = name.startswith(f"{place}.") and not any(name.startswith(other) for other in longer)
        if (is_of_plugin and name not in own) or (name.startswith("kvtier.") and name not in OWN):
            near = difflib.get_close_matches(name, [*own, *OWN], n=1)
            hint = f"write {near[0]!r}" if near else f"it has {', '.join(sorted(known))}"
            raise ValueError(f"extra_config[{name!r}]: kvtier's plugin has no such setting: {hint}")


def metrics_address(extra: dict[str, Any], place: str, metadata: LMCacheMetadata) -> Optional[str]:
    """The address of the metrics server; ``None`` without one. The worker's number is added to the port, since each worker is a process."""
    address = extra.get(f"{place}.metrics")
    if address is None:
        return None
    host, colon, port = str(address).rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"extra_config['{place}.metrics'] = {address!r} is not an address: write HOST:PORT, such as 127.0.0.1:9464")
    own = int(port) + (metadata.worker_id if int(port) else 0)
    return f"{host}:{own}"


def masked(url: str) -> str:
    """Masks what may be secret in a URL: the query, and everything before the last ``@``, since a password may contain any character. With a
    ``?`` before that ``@`` the parts are ambiguous, and only the scheme is shown."""
    scheme, colon, rest = url.partition("://")
    if not (colon and scheme.isalnum()):
        scheme, colon, rest = "", "", url
    before, at, after = rest.rpartition("@")
    if "?" in before:
        return f"{scheme}{colon}***"
    path, mark, _ = after.partition("?")
    return f"{scheme}{colon}{'***@' if at else ''}{path}{'?***' if mark else ''}"
