"""Configurations of LMCache's in-process mode, as its pages print them, below `kvtier.Store`."""

import asyncio
import json
import math
import os
import pathlib
import struct
import unittest
import urllib.parse
from unittest import mock

import kvtier
from bucket import KEYS, Server
from kvtier import EngineKey, Key, Shape, Store, errors, keys
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
# The page's own file, but for the directory.
PAGE = pathlib.Path(__file__).parents[2] / "testkit/vectors/pages/004_0.yaml"
GDS = PAGE.read_text().replace("/mnt/gds/cache", "{path}")
SHAPE = """extra_config:
  kvtier.gds_shape: 2x4x16x32
"""
CHUNK = 2 * 4 * 16 * 32 * 2
# LMCache's numbers of formats.
KV_2LTD, KV_T2D, BINARY, KV_MLA = 1, 2, 4, 6


class array(bytearray):
    """Memory with the attributes of NumPy arrays and tensors."""

    def __new__(cls, *axes):
        return super().__new__(cls, 2 * math.prod(axes))

    def __init__(self, *axes):
        super().__init__(2 * math.prod(axes))
        self.shape, self.dtype = axes, "float16"


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
        own = self.moves(self.opened(GDS.format(path=cache)))
        self.assertEqual(self.headers(cache), {own[n]: ([CHUNK], "U8", BINARY) for n in range(3)}, "bytes are no tensor")

    def test_the_page_on_gds_beside_chunks_that_were_saved_before_as_bytes(self):
        cache = os.path.join(self.dir, "cache")
        store = self.opened(GDS.format(path=cache))
        self.assertEqual(store.save([EngineKey("m", 1, "half")], [os.urandom(CHUNK)]), [True])
        store.close()
        store, own = self.opened(GDS.format(path=cache)), [EngineKey("m", 2, "half"), EngineKey("m", 3, "half")]
        self.assertEqual(store.save(own, [b"shorter", b"longer than this"]), [True, True], "of other lengths")
        self.assertEqual(store.lookup(own), [7, 16])

    def test_the_page_on_gds_with_the_shape_of_a_chunk(self):
        cache = os.path.join(self.dir, "cache")
        store = self.opened(GDS.format(path=cache) + SHAPE)
        own = self.moves(store)
        self.assertEqual(self.headers(cache), {key: ([2, 4, 16, 32], "BF16", KV_2LTD) for key in own})

    def test_a_save_states_the_shape_of_its_chunks(self):
        cache = os.path.join(self.dir, "cache")
        store, data = self.opened(GDS.format(path=cache)), os.urandom(CHUNK)
        own = [EngineKey("m", n, "bfloat16") for n in range(3)]
        store.save(own[:1], [data], shape="2x4x16x32")
        store.save(own[1:2], [data[: CHUNK // 2]], shape=Shape((1, 4, 8, 64), "KV_MLA_FMT", "float16"))
        asyncio.run(store.asave(own[2:], [data], shape="16x2x128 KV_T2D"))
        wanted = [([2, 4, 16, 32], "BF16", KV_2LTD), ([1, 4, 8, 64], "F16", KV_MLA), ([16, 2, 128], "BF16", KV_T2D)]
        self.assertEqual(self.headers(cache), dict(zip(own, wanted)))
        with self.assertRaisesRegex(errors.Unsupported, "not whole tokens of the given shape"):
            store.save([EngineKey("other", 1, "half")], [data[:-1]], shape="2x4x16x32")
        with self.assertRaisesRegex(ValueError, "'large' is no shape: write"):
            store.save(own, [data] * 3, shape="large")

    def test_arrays_state_their_shape(self):
        cache = os.path.join(self.dir, "cache")
        store = self.opened(GDS.format(path=cache))
        own = [EngineKey("m", n, "half") for n in range(4)]
        of = [array(2, 4, 16, 32), b"bytes", array(1, 4, 16, 64), array(2, 4, 16, 32)]
        self.assertEqual(store.save(own[:3], of[:3]), [True] * 3)
        self.assertEqual(asyncio.run(store.asave(own, of)), [False] * 3 + [True], "in the order of the buffers")
        wanted = [([2, 4, 16, 32], "F16", KV_2LTD), ([5], "U8", BINARY), ([1, 4, 16, 64], "F16", KV_MLA), ([2, 4, 16, 32], "F16", KV_2LTD)]
        self.assertEqual(self.headers(cache), dict(zip(own, wanted)))

    def test_a_cancelled_save_of_several_shapes_ends_after_all_its_batches(self):
        store = self.opened(GDS.format(path=os.path.join(self.dir, "cache")))
        own, wanted = [EngineKey("m", n, "half") for n in range(24)], [bytes([n]) * ((1 << 20) + n) for n in range(24)]
        data = [bytearray(one) for one in wanted]

        async def work():
            save = asyncio.ensure_future(store.asave(own, data))
            await asyncio.sleep(0)
            for _ in range(3):
                save.cancel()
                await asyncio.sleep(0)
            with self.assertRaises(asyncio.CancelledError):
                await save
            for one in data:
                one[:] = bytes(len(one))

        asyncio.run(work())
        into = [bytearray(len(one)) for one in wanted]
        self.assertEqual(store.load(own, into), [len(one) for one in wanted])
        self.assertTrue(all(found == one for found, one in zip(into, wanted)))

    def headers(self, directory):
        """By key: shape, type of element and format, as the header of each file states them, which LMCache reads."""
        found = {}
        for at, _, names in os.walk(directory):
            for name in names:
                if name.endswith(".kvcache.safetensors"):
                    with open(os.path.join(at, name), "rb") as file:
                        (length,) = struct.unpack("<Q", file.read(8))
                        tensor = json.loads(file.read(length))["kvcache"]
                    key = keys.parse(urllib.parse.unquote(name.removesuffix(".kvcache.safetensors")), is_engine=True)
                    found[key] = (tensor["shape"], tensor["dtype"], tensor["fmt"])
        return found

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

    def test_settings_without_effect_are_logged(self):
        with self.assertLogs("kvtier", "WARNING") as log:
            self.opened("local_cpu: true\nmax_local_cpu_size: 0.01\nlocal_cpu_sise: 3\n")
        self.assertIn("local_cpu_sise", "".join(log.output))
