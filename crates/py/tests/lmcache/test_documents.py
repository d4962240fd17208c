"""The commands of docs/lmcache.md, as LMCache's own parser reads them."""

import argparse
import json
import re
import shlex
import tempfile
import unittest
from pathlib import Path

from lmcache.cli.commands.bench.l2_adapter_bench.command import add_l2_arguments
from lmcache.v1.config import LMCacheEngineConfig
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

    def test_every_yaml_of_the_page_names_plugins_that_are_there(self):
        import kvtier.lmcache

        texts = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
        self.assertEqual(len(texts), 3)
        for text in texts:
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(text)
                file.flush()
                config = LMCacheEngineConfig.from_file(file.name)
            kind = "storage_plugin" if config.storage_plugins else "remote_storage_plugin"
            for name in config.storage_plugins or config.remote_storage_plugins:
                place = f"{kind}.{name}"
                self.assertEqual(config.extra_config[f"{place}.module_path"], "kvtier.lmcache")
                self.assertTrue(hasattr(kvtier.lmcache, config.extra_config[f"{place}.class_name"]))

    def test_the_benchmark_of_the_page_is_one_that_lmcache_takes(self):
        command = re.search(r"^lmcache bench l2 (.*(?:\n +.*)*)", PAGE.read_text(), re.MULTILINE).group(1)
        parser = argparse.ArgumentParser()
        add_l2_arguments(parser)
        adapter = json.loads(parser.parse_args(shlex.split(command)).l2_adapter[0])
        self.assertEqual((adapter["module_path"], adapter["class_name"]), ("kvtier.lmcache", "KvtierL2Adapter"))


if __name__ == "__main__":
    unittest.main()
