"""Unpacks the modules of a vLLM wheel that the contract tests import.

python unpack.py WHEEL FOLDER
"""

import os
import sys
import zipfile

# Files and folders of the wheel.
NEEDED = (
    "vllm/_version.py",
    "vllm/version.py",
    "vllm/envs.py",
    "vllm/utils/__init__.py",
    "vllm/utils/math_utils.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/metrics.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/offloading/",
    "vllm/v1/core/kv_cache_utils.py",
    "vllm/v1/kv_hints/",
    "vllm/v1/kv_offload/",
    "vllm/v1/metrics/",
)


def main(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py") and name.startswith(NEEDED)]
        lacking = [path for path in NEEDED if not any(name.startswith(path) for name in names)]
        if lacking:
            sys.exit(f"{os.path.basename(wheel)} lacks {', '.join(lacking)}: is the interface for tiers elsewhere in this version?")
        for name in names:
            archive.extract(name, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
