"""Programs of their own, for what ends or forks, and folders that go with a test."""

import os
import subprocess
import sys
import tempfile
import textwrap

import kvtier

# Ending takes as long as what is in flight may take; a program that hangs is the fault to be found.
SECONDS_MAX = 120


def run(script):
    """Runs a program; returns its exit code and output."""
    path = os.pathsep.join([os.path.dirname(os.path.dirname(kvtier.__file__)), os.path.dirname(__file__)])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, env=environment)
    return done.returncode, done.stdout + done.stderr


def folder(case):
    place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    case.addCleanup(place.cleanup)
    return place.name
