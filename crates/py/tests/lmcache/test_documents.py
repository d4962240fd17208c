"""The commands of docs/lmcache.md, as LMCache's own parser reads them."""

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.append(os.path.dirname(os.path.dirname(__file__)))
from bucket import KEYS, Server  # noqa: E402
from lmcache.cli.commands.bench.l2_adapter_bench.command import add_l2_arguments
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.config import get_arg_parser, parse_args_to_config
from test_remote import CHUNK, Engine

PAGE = Path(__file__).parents[4] / "docs" / "lmcache.md"
# A bucket of this name is part of the server's host, see test_s3.py.
BUCKET = "127.0.0"
LIMIT_SECONDS = 600


def yamls():
    """The configurations of the in-process mode that the page has."""
    return re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


class Configurations(Engine):
    def test_every_setup_of_the_page_stores_and_finds_after_a_restart(self):
        self.assertEqual(len(yamls()), 3)
        for n, text in enumerate(yamls()):
            with self.subTest(text):
                self.serves(f"{self.dir}/{n}", text)

    def serves(self, place, text):
        """The page's text but for where things are and how much memory there is, and the sizes of the test's model."""
        os.makedirs(place)
        text = text.replace("/mnt/nvme/", f"{place}/").replace("max_local_cpu_size: 20", "max_local_cpu_size: 0.05")
        text, more = re.sub("chunk_size: 256", f"chunk_size: {CHUNK}", text), ""
        if "s3://" in text:
            server = Server(BUCKET)
            self.addCleanup(server.stop)
            text, named = re.subn("s3://my-kv.s3.us-east-1.amazonaws.com", f"s3://localhost:{server.port}", text)
            self.assertEqual(named, 1)
            own = {"bucket": BUCKET, "disable_tls": True, **KEYS}
            more = f"chunk_size: {CHUNK}\nmax_local_cpu_size: 0.05\nlocal_cpu: false\n"
            text += "".join(f"  {name}: {json.dumps(value)}\n" for name, value in own.items())
        path = Path(place) / "lmcache.yaml"
        path.write_text(more + text)
        tokens = list(range(3 * CHUNK))
        engine = self.start(LMCacheEngineConfig.from_file(str(path)))
        [ours] = [name for name in engine.storage_manager.storage_backends if name.endswith("kvtier")]
        engine.store(tokens)
        # LMCache's own memory has them at once.
        limit = time.monotonic() + LIMIT_SECONDS
        while engine.lookup(tokens, search_range=[ours]) < len(tokens) and time.monotonic() < limit:
            time.sleep(0.02)
        self.stop()
        self.engine_now = self.start(LMCacheEngineConfig.from_file(str(path)))
        self.whole(tokens, len(tokens))
        self.stop()


class Documents(unittest.TestCase):
    def test_every_server_of_the_page_starts_as_it_stands(self):
        # A command is a line and those after it that are indented.
        commands = re.findall(r"^lmcache server (.*(?:\n +.*)*)", PAGE.read_text(), re.MULTILINE)
        self.assertEqual(len(commands), 3)
        for command in commands:
            config = parse_args_to_config(get_arg_parser().parse_args(shlex.split(command)))
            [adapter] = config.l2_adapter_config.adapters
            self.assertEqual((adapter.module_path, adapter.class_name), ("kvtier.lmcache", "KvtierL2Adapter"))

    def test_every_yaml_of_the_page_names_existing_plugins(self):
        import kvtier.lmcache

        for text in yamls():
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(text)
                file.flush()
                config = LMCacheEngineConfig.from_file(file.name)
            kind = "storage_plugin" if config.storage_plugins else "remote_storage_plugin"
            for name in config.storage_plugins or config.remote_storage_plugins:
                place = f"{kind}.{name}"
                self.assertEqual(config.extra_config[f"{place}.module_path"], "kvtier.lmcache")
                self.assertTrue(hasattr(kvtier.lmcache, config.extra_config[f"{place}.class_name"]))

    def test_lmcache_accepts_the_benchmark_of_the_page(self):
        command = re.search(r"^lmcache bench l2 (.*(?:\n +.*)*)", PAGE.read_text(), re.MULTILINE).group(1)
        parser = argparse.ArgumentParser()
        add_l2_arguments(parser)
        adapter = json.loads(parser.parse_args(shlex.split(command)).l2_adapter[0])
        self.assertEqual((adapter["module_path"], adapter["class_name"]), ("kvtier.lmcache", "KvtierL2Adapter"))


if __name__ == "__main__":
    unittest.main()
