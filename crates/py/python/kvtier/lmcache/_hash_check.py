"""Checks that LMCache hashes a chunk to the same key in every process. Otherwise no saved chunk is found after a restart."""

import importlib
import os
from typing import Any, Optional

from .._log import logger

# Hash algorithms that vLLM implements.
SHA = ("sha256", "sha256_cbor", "sha256_cbor_64bit")
XXHASH = ("xxhash", "xxhash_cbor")


def unstable(config: Any) -> Optional[str]:
    """The reason why the in-process mode hashes the same tokens differently after a restart; ``None`` if it does not.

    Every chain of chunk hashes begins with ``NONE_HASH``. If vLLM has ``init_none_hash``, LMCache calls it: the value is a hash of
    ``PYTHONHASHSEED``. Without the variable it is a hash of a fixed text (vLLM 0.32, except xxhash) or of random bytes (earlier versions).
    Python's own hash of a text, which LMCache uses for algorithms that vLLM does not implement, differs per process without the variable.
    Without vLLM ``NONE_HASH`` is 0, and hashes of numbers do not depend on the seed.
    """
    try:
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    except (ImportError, AttributeError):
        return None
    if not hasattr(utils, "init_none_hash"):
        return None
    seed, algorithm = os.environ.get("PYTHONHASHSEED"), str(config.pre_caching_hash_algorithm)
    if seed is None and not (algorithm in SHA and hasattr(utils, "resolve_none_hash_seed")):
        return f"PYTHONHASHSEED is not set, so that chunk hashes by {algorithm!r} begin differently in each process"
    if seed == "random" and algorithm not in (*SHA, *XXHASH):
        return f"PYTHONHASHSEED is 'random', so that chunk hashes by {algorithm!r} begin differently in each process"
    return None


def warn(config: Any) -> None:
    """Logs an error if chunks that are saved now cannot be found after a restart."""
    reason = unstable(config)
    if reason is not None:
        logger.error(
            "nothing that is saved now can be found after a restart, nor by other processes: %s; set PYTHONHASHSEED=0 for every process of "
            "the fleet, before they start",
            reason,
        )
