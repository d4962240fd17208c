"""The parameters in ``--hicache-storage-backend-extra-config``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from .. import _engine
from . import _identity

WHERE = "kvtier.sglang.KvtierHiCache"
# SGLang's own, which it reads itself.
OF_SGLANG = (
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "allocator",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
    "tp_lcm_size",
    # SGLang adds it for --file-storage-path.
    "file_storage_path",
)
PARAMS = ("tiers", "config", "timeout_seconds", "weights", "share_data_parallel", "metrics")


@dataclass(frozen=True)
class Settings:
    """The parameters, checked."""

    tiers: Any
    config: Optional[str]
    timeout_seconds: float
    names: _identity.Names
    metrics: Optional[str]
    # Whether SGLang moves pages by the calls without copies.
    is_zero_copy: bool

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "Settings":
        """Reads the parameters.

        :raises ValueError: for a wrong one, with the key and a remedy.
        """
        unknown = {name: value for name, value in given.items() if name not in PARAMS and name not in OF_SGLANG}
        _engine.check_params(WHERE, unknown, (*PARAMS, *OF_SGLANG))
        weights, share = given.get("weights"), given.get("share_data_parallel", True)
        if weights is not None and not isinstance(weights, str):
            raise ValueError(f"{WHERE}: weights = {weights!r}: write a text that names the model's weights, such as a revision")
        if not isinstance(share, bool):
            raise ValueError(f"{WHERE}: share_data_parallel = {share!r}: write true or false")
        metrics = given.get("metrics")
        if metrics is not None and not isinstance(metrics, str):
            raise ValueError(f"{WHERE}: metrics = {metrics!r}: write an address, such as 127.0.0.1:9464, or 127.0.0.1:0 for a free port")
        return cls(
            tiers=given.get("tiers"),
            config=given.get("config"),
            timeout_seconds=_engine.positive(WHERE, "timeout_seconds", given.get("timeout_seconds", 30.0)),
            names=_identity.Names(weights, share),
            metrics=metrics,
            is_zero_copy=bool(given.get("interface_v1", 0)),
        )
