"""``python -m kvtier`` is the command that came with the module."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import kvtier

PACKAGE = pathlib.Path(kvtier.__file__).parent


class Command(unittest.TestCase):
    def run_command(self, *args, **env):
        words = [sys.executable, "-m", "kvtier", *args]
        return subprocess.run(words, capture_output=True, text=True, env={**os.environ, **env}, timeout=600)

    def test_it_runs_with_its_arguments_and_its_exit_code(self):
        done = self.run_command("--version")
        self.assertEqual((done.stdout, done.returncode), (f"kvtier {kvtier.__version__}\n", 0), done.stderr)
        done = self.run_command("stat", "/nonexistent/kv")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/nonexistent/kv", done.stderr)

    def test_a_missing_program_is_an_error(self):
        with tempfile.TemporaryDirectory() as place:
            # Its own Python files alone, and a home without programs.
            shutil.copytree(PACKAGE, f"{place}/lib/kvtier")
            finder = f"import sysconfig; sysconfig.get_path = lambda *_, **__: {place!r}; import runpy; runpy.run_module('kvtier', run_name='__main__')"
            env = {**os.environ, "PYTHONPATH": f"{place}/lib"}
            done = subprocess.run([sys.executable, "-c", finder], capture_output=True, text=True, env=env, cwd=place, timeout=600)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^kvtier: the program kvtier is in none of .*: install the wheel again\n$")
