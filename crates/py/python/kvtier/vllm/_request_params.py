"""What a request says to kvtier."""

import math
from dataclasses import dataclass, field
from typing import Any, Optional

from .. import _native

# In ``kv_transfer_params``, and the type of an action in ``kv_hints``.
PARAMS = "kvtier"
PRIORITIES = range(-128, 128)


@dataclass(frozen=True)
class Wishes:
    """The fields of a request, and how many were ignored.

    A request whose tenant is invalid has no tenant that would be safe to assume: ``is_served`` is false, and it neither loads nor stores.
    """

    tenant: str = ""
    priority: int = 0
    ttl_seconds: Optional[float] = None
    ignored: int = 0
    is_served: bool = True


@dataclass
class Request:
    """A request in one tier. ``native`` is ``None`` if the tier does not serve it."""

    native: Optional[_native.EngineRequest]
    may_load: bool
    # The chunks of its jobs: loads and stores count as uses by themselves.
    moved: set[bytes] = field(default_factory=set)


class Requests:
    """The state of one request in each kvtier tier of an engine. vLLM keeps one object a type in the context of a request."""

    __slots__ = ("by_tier",)

    def __init__(self) -> None:
        self.by_tier: dict[int, Request] = {}


def wishes(context: Any) -> Wishes:
    """Reads ``kv_transfer_params["kvtier"]`` and the actions of ``kv_hints`` of a request. The parameters win over the hints."""
    found: dict[str, Any] = {}
    ignored = 0
    for action in getattr(context.kv_hints, "actions", None) or ():
        payload = action.payload if isinstance(action.payload, dict) else {}
        if action.action_type == PARAMS and action.action_version == "1":
            # Who the request belongs to is not for an orchestrator's hint to say.
            found.update({name: value for name, value in payload.items() if name != "tenant"})
            ignored += "tenant" in payload
        else:
            ignored += 1
    params = (context.kv_transfer_params or {}).get(PARAMS)
    if isinstance(params, dict):
        found.update(params)
    elif params is not None:
        ignored += 1
    return _checked(found, ignored)


def _checked(found: dict[str, Any], ignored: int) -> Wishes:
    tenant, priority, ttl = found.pop("tenant", None), found.pop("priority", None), found.pop("ttl_seconds", None)
    ignored += len(found)
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int) or priority not in PRIORITIES):
        priority, ignored = None, ignored + 1
    is_number = isinstance(ttl, (int, float)) and not isinstance(ttl, bool)
    if ttl is not None and not (is_number and math.isfinite(ttl) and ttl > 0):
        ttl, ignored = None, ignored + 1
    if tenant is not None and not isinstance(tenant, str):
        return Wishes(ignored=ignored + 1, is_served=False)
    return Wishes(tenant or "", priority or 0, None if ttl is None else float(ttl), ignored)
