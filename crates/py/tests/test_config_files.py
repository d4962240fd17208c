"""Configurations of LMCache's in-process mode, as its pages print them, below `kvtier.Store`."""

import os
import unittest
from unittest import mock

import kvtier
from bucket import KEYS, Server
from kvtier import EngineKey, Key, Store, errors, keys
from scripts import folder

BUCKET = """chunk_size: 256
local_cpu: False
save_unfull_chunk: False
remote_url: "s3://your-bucket-name"
remote_serde: "naive"
blocking_timeout_secs: 10
extra_config:
  s3_region: "us-east-1"
  s3_num_io_threads: 64
  save_chunk_meta: False
"""
GDS = """# 256 Tokens per KV Chunk
chunk_size: 256
# Disable local CPU
local_cpu: false
# Path to file system, local, remote or GDS-enabled mount
gds_path: "{path}"
# CuFile Buffer Size in MiB
cufile_buffer_size: 8192
"""
SHAPE = """extra_config:
  kvtier.gds_shape: 2x4x16x32
"""
CHUNK = 2 * 4 * 16 * 32 * 2


class Files(unittest.TestCase):
    def setUp(self):
        self.dir = folder(self)

    def write(self, text):
        path = os.path.join(self.dir, "lmcache.yaml")
        with open(path, "w") as file:
            file.write(text)
        return path

    def opened(self, text, **more):
        store = Store(config=self.write(text), **more)
        self.addCleanup(store.close)
        return store

    def moves(self, store):
        own = [EngineKey("org/model", 2**63 + n, "bfloat16", world_size=2, worker_id=1) for n in range(3)]
        data = [os.urandom(CHUNK) for _ in own]
        self.assertEqual(store.save(own, data), [True] * 3)
        self.assertEqual(store.lookup([*own, EngineKey("org/model", -1, "half")]), [CHUNK] * 3 + [None])
        into = [bytearray(CHUNK) for _ in own]
        self.assertEqual(store.load(own, into), [CHUNK] * 3)
        self.assertEqual([bytes(one) for one in into], data)
        self.assertEqual(dict(store.list()), {one: CHUNK for one in own})
        with self.assertRaisesRegex(errors.Invalid, "kvtier.EngineKey"):
            store.lookup([Key("org/model", b"hash")])
        return own

    def test_the_page_on_s3(self):
        server = Server(bucket="your-bucket-name")
        self.addCleanup(server.stop)
        place = {
            "AWS_ENDPOINT_URL": f"http://localhost:{server.port}",
            "AWS_ACCESS_KEY_ID": KEYS["aws_access_key_id"],
            "AWS_SECRET_ACCESS_KEY": KEYS["aws_secret_access_key"],
        }
        with mock.patch.dict(os.environ, place):
            store = self.opened(BUCKET)
        own = self.moves(store)
        self.assertEqual(sorted(server.keys()), sorted(str(one).replace("/", "_") for one in own))

    def test_the_page_on_gds(self):
        cache = os.path.join(self.dir, "cache")
        store = self.opened(GDS.format(path=cache))
        self.assertTrue(store.status().healthy)
        store.close()
        self.moves(self.opened(GDS.format(path=cache) + SHAPE))

    def test_the_other_modes_keys_are_refused(self):
        path = os.path.join(self.dir, "files")
        store = Store(tiers=[{"type": "file", "path": path, "bytes": "8MiB", "layout": "lmcache-mp"}])
        self.addCleanup(store.close)
        with self.assertRaisesRegex(errors.Invalid, "EngineKey"):
            store.lookup([EngineKey("m", 1, "half")])
        text = f"local_cpu: false\nremote_url: fs://localhost:0{path}2\n"
        with self.assertRaisesRegex(ValueError, "in-process mode alone.*multi-process"):
            kvtier.Connector(config=self.write(text))

    def test_keys_are_read_from_their_texts(self):
        for one in [
            EngineKey("org/model", 2**255 + 1, "bfloat16", world_size=8, worker_id=7),
            EngineKey("m", -5, "half", tags=(("user", "a"), ("team", ""))),
        ]:
            self.assertEqual(keys.parse(str(one), is_engine=True), one)
        self.assertEqual(keys.parse("m@1@0@5@half@3", is_engine=True), "m@1@0@5@half@3", "one layer of a chunk")
        for one in [Key("m", b"\0\1", rank=2**40, group=3), Key("org/m", b"h", salt="s")]:
            self.assertEqual(keys.parse(str(one), is_engine=False), one)

    def test_what_a_file_says_in_vain_is_logged(self):
        with self.assertLogs("kvtier", "WARNING") as log:
            self.opened("local_cpu: true\nmax_local_cpu_size: 0.01\nlocal_cpu_sise: 3\n")
        self.assertIn("local_cpu_sise", "".join(log.output))
