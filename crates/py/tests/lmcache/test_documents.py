"""The commands of docs/lmcache.md, as LMCache's own parser reads them."""

import re
import shlex
import unittest
from pathlib import Path

from lmcache.v1.distributed.config import get_arg_parser, parse_args_to_config

PAGE = Path(__file__).parents[4] / "docs" / "lmcache.md"


class Documents(unittest.TestCase):
    def test_every_server_of_the_page_starts_as_it_stands(self):
        # A command is a line and those after it that are indented.
        commands = re.findall(r"^lmcache server (.*(?:\n +.*)*)", PAGE.read_text(), re.MULTILINE)
        self.assertEqual(len(commands), 3)
        for command in commands:
            config = parse_args_to_config(get_arg_parser().parse_args(shlex.split(command)))
            [adapter] = config.l2_adapter_config.adapters
            self.assertEqual((adapter.module_path, adapter.class_name), ("kvtier.lmcache", "KvtierL2Adapter"))


if __name__ == "__main__":
    unittest.main()
