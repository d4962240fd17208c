"""Whether LMCache gives a chunk the same name in every process. Without that nothing that was saved is found again."""

import importlib
import os
from typing import Any, Optional

from .._log import logger

# What vLLM has by name.
SHA = ("sha256", "sha256_cbor", "sha256_cbor_64bit")
XXHASH = ("xxhash", "xxhash_cbor")


def unstable(config: Any) -> Optional[str]:
    """Why the in-process mode names the same tokens differently after a restart; ``None`` where it does not.

    Every chain of chunk hashes begins at ``NONE_HASH``. Where vLLM has ``init_none_hash``, LMCache lets it choose that: a hash of
    ``PYTHONHASHSEED``, or without this variable of a fixed text (vLLM 0.32: not for xxhash) or of random bytes (earlier ones). Python's own
    hash of a text differs in each process without the variable; LMCache takes it for every algorithm that is not vLLM's. Without vLLM
    ``NONE_HASH`` is 0, and hashes of numbers do not depend on the seed.
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
    """Logs an error where the cache is of no use after a restart."""
    why = unstable(config)
    if why is not None:
        logger.error(
            "nothing that is saved now can be found after a restart, nor by other processes: %s; set PYTHONHASHSEED=0 for every process of "
            "the fleet, before they start",
            why,
        )
