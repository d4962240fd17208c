"""Runs the Python code of README.md."""

import os
import pathlib
import tempfile
import unittest

README = pathlib.Path(__file__).parents[3] / "README.md"


class Readme(unittest.TestCase):
    def test_the_snippet_of_the_readme_runs(self):
        blocks = README.read_text().split("```python\n")[1:]
        self.assertEqual(len(blocks), 1)
        self.addCleanup(os.chdir, os.getcwd())
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            exec(compile(blocks[0].split("```")[0], str(README), "exec"), {})
            self.assertTrue((pathlib.Path(place) / "kv-cache" / ".kvtier").is_dir())
            os.chdir("/")


if __name__ == "__main__":
    unittest.main()
