"""Unpacks the modules of an SGLang wheel that the contract tests import.

python unpack.py WHEEL FOLDER
"""

import os
import sys
import zipfile

# Files and folders of the wheel.
NEEDED = (
    "sglang/_version.py",
    "sglang/version.py",
    "sglang/srt/environ.py",
    "sglang/srt/mem_cache/device_pool_info.py",
    "sglang/srt/mem_cache/hicache_storage.py",
    "sglang/srt/mem_cache/memory_pool_host.py",
    "sglang/srt/mem_cache/pool_host/",
    "sglang/srt/mem_cache/storage/backend_factory.py",
)


def main(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py") and name.startswith(NEEDED)]
        lacking = [path for path in NEEDED if not any(name.startswith(path) for name in names)]
        if lacking:
            sys.exit(f"{os.path.basename(wheel)} lacks {', '.join(lacking)}: is the interface for storage elsewhere in this version?")
        for name in names:
            archive.extract(name, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
