"""Unpacks the modules of an engine's wheel that the contract tests import.

python unpack_wheel.py WHEEL FOLDER LIST, with a list of files and folders of the wheel.
"""

import os
import sys
import zipfile


def main(wheel, folder, listed):
    with open(listed) as file:
        needed = tuple(file.read().split())
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py") and name.startswith(needed)]
        lacking = [path for path in needed if not any(name.startswith(path) for name in names)]
        if lacking:
            sys.exit(f"{os.path.basename(wheel)} lacks {', '.join(lacking)}: is the interface for storage elsewhere in this version?")
        for name in names:
            archive.extract(name, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
