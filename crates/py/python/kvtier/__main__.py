"""``python -m kvtier`` runs the command ``kvtier``, a program in the wheel."""

import os
import sys
import sysconfig
from typing import NoReturn


def find() -> str:
    """The path of the program: beside this interpreter, or where ``pip install --user`` or ``--target`` put it."""
    package = os.path.dirname(os.path.abspath(__file__))
    user = sysconfig.get_path("scripts", scheme=sysconfig.get_preferred_scheme("user"))
    folders = [sysconfig.get_path("scripts"), user, os.path.join(os.path.dirname(package), "bin")]
    for folder in folders:
        path = os.path.join(folder, "kvtier")
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(f"the program kvtier is in none of {', '.join(folders)}: install the wheel again")


def main() -> NoReturn:
    """Replaces this process with the program."""
    try:
        program = find()
    except FileNotFoundError as e:
        sys.exit(f"kvtier: {e}")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
