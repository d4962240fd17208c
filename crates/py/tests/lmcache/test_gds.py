"""LMCache's in-process engine with kvtier's storage plugin instead of its GDS backend."""

import asyncio
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request
from unittest import mock

import torch
from gds import CHUNK_BYTES, PLACE, Gds, all_of, files, header_of, theirs
from kvtier.lmcache import _hash_check, _objects
from kvtier.lmcache import gds as plugin
from test_remote import CHUNK, HEAD, HEADS, of_tokens

# The path of the stand-in for the driver's library.
LIBRARY = os.environ.get("KVTIER_FAKEGPU", "")
LIMIT_SECONDS = 600


class Plugin(Gds):
    def test_the_engine_stores_finds_and_retrieves_also_after_a_restart(self):
        tokens = list(range(5 * CHUNK))
        engine = self.engine()
        self.stored(engine, tokens, len(tokens))
        [self.assertEqual(pathlib.Path(path).read_bytes()[:4096], header_of(CHUNK)) for path in files(self.dir)]
        self.assertEqual(len(files(self.dir)), 5)
        self.stop()
        self.engine_now = self.engine()
        self.assertEqual(self.engine_now.lookup([*tokens, *range(7, 7 + CHUNK)]), len(tokens))
        self.whole(tokens, len(tokens))
        self.assertEqual(self.engine_now.lookup([5, *tokens]), 0)
        self.assertEqual(self.pinned(self.engine_now), 0, "the engine's memory came back")
        self.assertEqual(self.counter(self.engine_now, "unverified"), 0)

    def test_the_last_chunk_may_be_shorter(self):
        tokens = list(range(2 * CHUNK + 5))
        self.engine_now = self.engine(save_unfull_chunk=True)
        self.stored(self.engine_now, tokens, len(tokens))
        self.whole(tokens, len(tokens))
        heads = {pathlib.Path(path).read_bytes()[:4096] for path in files(self.dir)}
        self.assertEqual(heads, {header_of(CHUNK), header_of(5)})

    def test_kvtier_tiers_work_too(self):
        extra = {f"{PLACE}.gds_path": None, f"{PLACE}.bytes": None, f"{PLACE}.tiers": [self.tier()]}
        tokens = list(range(3 * CHUNK))
        self.engine_now = self.engine(extra)
        self.stored(self.engine_now, tokens, len(tokens))
        self.whole(tokens, len(tokens))
        self.assertEqual(files(self.dir), [])

    def test_lmcache_and_kvtier_read_each_others_files(self):
        tokens, more = list(range(3 * CHUNK)), [token + 10_000 for token in range(3 * CHUNK)]
        self.engine_now = engine = self.engine()
        self.stored(engine, tokens, len(tokens))
        own = theirs(self.dir, engine)
        self.addCleanup(own.close)
        for n, key in enumerate(self.keys(engine, tokens)):
            self.assertTrue(own.contains(key), key)
            obj = own.get_blocking(key)
            self.assertTrue(torch.equal(obj.tensor.cpu(), of_tokens(n * CHUNK, (n + 1) * CHUNK)))
            obj.ref_count_down()
        # What it writes is found and loaded here, while it and we are at work.
        for n, key in enumerate(self.keys(engine, more)):
            obj = own.allocate(engine.metadata.get_shapes(), engine.metadata.get_dtypes())
            obj.tensor.copy_(of_tokens(n * CHUNK, (n + 1) * CHUNK))
            own.submit_put_task(key, obj).result(LIMIT_SECONDS)
            obj.ref_count_down()
        asyncio.run_coroutine_threadsafe(all_of(own.save_metadata_tasks), own.loop).result(LIMIT_SECONDS)
        self.assertEqual(engine.lookup(more), len(more))
        self.gpu.got.clear()
        self.whole(more, len(more))

    def test_pinned_chunks_are_not_removed(self):
        tokens = list(range(3 * CHUNK))
        engine = self.engine()
        self.stored(engine, tokens, len(tokens))
        backend, (first, second, third) = self.backend(engine), self.keys(engine, tokens)
        self.assertTrue(backend.contains(first, pin=True) and backend.pin(second))
        self.assertEqual(backend.batched_remove([first, second, third]), 1)
        self.assertEqual(backend.batched_contains([first, second, third]), 2)
        self.assertTrue(backend.unpin(first) and backend.unpin(second))
        self.assertTrue(backend.remove(first))
        self.assertFalse(backend.contains(first))
        self.assertEqual(backend.batched_contains([first, second]), 0, "chunks after a gap are no prefix")
        self.assertEqual([obj is not None for obj in self.given(backend, [first, second, third])], [False, True, False])

    def given(self, backend, keys):
        objs = backend.batched_get_blocking(keys)
        [obj.ref_count_down() for obj in objs if obj is not None]
        return objs

    def test_the_loop_finds_and_loads_prefixes(self):
        tokens = list(range(4 * CHUNK))
        engine = self.engine()
        self.stored(engine, tokens, len(tokens))
        backend, keys = self.backend(engine), self.keys(engine, tokens)

        def on_loop(coroutine):
            return asyncio.run_coroutine_threadsafe(coroutine, engine.storage_manager.loop).result(LIMIT_SECONDS)

        self.assertEqual(on_loop(backend.batched_async_contains("id", keys, pin=True)), 4)
        [backend.unpin(key) for key in keys]
        self.assertTrue(backend.remove(keys[2]))
        found = on_loop(backend.batched_get_non_blocking("id", keys, {}))
        self.assertEqual(len(found), 2)
        for n, obj in enumerate(found):
            self.assertTrue(torch.equal(obj.tensor.cpu(), of_tokens(n * CHUNK, (n + 1) * CHUNK)))
            obj.ref_count_down()
        self.assertEqual(self.pinned(engine), 0)

    def test_an_object_is_released_when_its_save_has_ended(self):
        engine = self.engine()
        backend, [key] = self.backend(engine), self.keys(engine, list(range(CHUNK)))
        obj = engine.storage_manager.allocate(engine.metadata.get_shapes(), engine.metadata.get_dtypes())
        obj.tensor.copy_(of_tokens(0, CHUNK))
        ended, held = threading.Event(), threading.Event()
        # The loop is kept busy, so that the save is under way for as long as we look at it.
        backend.loop.call_soon_threadsafe(held.wait)
        [future] = backend.batched_submit_put_task([key], [obj], on_complete_callback=lambda _: ended.set())
        self.assertTrue(backend.exists_in_put_tasks(key))
        self.assertIsNone(backend.batched_submit_put_task([key], [obj]), "once is enough")
        self.assertEqual(obj.get_ref_count(), 2)
        held.set()
        future.result(LIMIT_SECONDS)
        self.assertTrue(ended.is_set())
        self.assertFalse(backend.exists_in_put_tasks(key))
        self.assertEqual(obj.get_ref_count(), 1)
        obj.ref_count_down()
        self.assertTrue(backend.contains(key))

    def test_a_chunk_without_a_shape_is_logged_by_its_hash_only(self):
        engine = self.engine()
        backend, [key] = self.backend(engine), self.keys(engine, list(range(CHUNK)))
        obj = engine.storage_manager.allocate(engine.metadata.get_shapes(), engine.metadata.get_dtypes())
        unknown = mock.patch.object(plugin, "shape", side_effect=ValueError("no shape"))
        with unknown, self.assertLogs("kvtier", "ERROR") as log:
            [future] = backend.batched_submit_put_task([key], [obj])
            future.result(LIMIT_SECONDS)
        said = "\n".join(log.output)
        self.assertIn(f"the chunk {key.chunk_hash_hex}; it is not saved", said)
        self.assertNotIn(key.model_name, said)
        self.assertFalse(backend.exists_in_put_tasks(key))
        self.assertEqual(obj.get_ref_count(), 1)
        obj.ref_count_down()

    def test_chunks_of_one_layer_have_headers_and_memory_of_their_own(self):
        engine = self.engine(use_layerwise=True)
        backend, [whole] = self.backend(engine), self.keys(engine, list(range(CHUNK)))
        axes, layers = (CHUNK, 2, HEADS * HEAD), whole.split_layers(2)
        fmt = engine.fmt
        objs = [engine.storage_manager.allocate(torch.Size(axes), torch.bfloat16, fmt=fmt) for _ in layers]
        for n, obj in enumerate(objs):
            obj.tensor.fill_(n + 1)
        [future] = backend.batched_submit_put_task(layers, objs)
        future.result(LIMIT_SECONDS)
        [obj.ref_count_down() for obj in objs]
        found = backend.batched_get_blocking(layers)
        for n, obj in enumerate(found):
            self.assertEqual((tuple(obj.get_shape()), obj.get_memory_format()), (axes, fmt))
            self.assertTrue(torch.equal(obj.tensor, torch.full(axes, n + 1, dtype=torch.bfloat16)))
            obj.ref_count_down()
        heads = {pathlib.Path(path).read_bytes()[:4096] for path in files(self.dir)}
        self.assertEqual(heads, {header_of(CHUNK, axes, fmt)})

    def test_the_cap_holds(self):
        self.engine_now = engine = self.engine({f"{PLACE}.bytes": 4 * (CHUNK_BYTES + 8192)})
        for n in range(5):
            tokens = [n * 1000 + token for token in range(2 * CHUNK)]
            self.stored(engine, tokens, len(tokens))
        self.assertLessEqual(len(files(self.dir)), 4)
        self.assertEqual(self.counter(engine, "io_errors"), 0)

    def test_a_batch_larger_than_the_memory_gives_what_fits(self):
        tokens = list(range(5 * CHUNK))
        engine = self.engine()
        self.stored(engine, tokens, len(tokens))
        backend, keys = self.backend(engine), self.keys(engine, tokens)
        allocate, given = backend.local_cpu_backend.allocate, []

        def scarce(*args, busy_loop, **more):
            given.append(busy_loop)
            return allocate(*args, busy_loop=busy_loop, **more) if len(given) <= 3 else None

        with mock.patch.object(backend.local_cpu_backend, "allocate", scarce):
            found = self.given(backend, keys)
        self.assertEqual([obj is not None for obj in found], [True, True, True, False, False])
        self.assertEqual(given, [True, False, False, False, False], "only the first waits")
        self.assertEqual(self.pinned(engine), 0)

    def test_contradictory_settings_are_logged_and_disable_the_backend(self):
        for says, extra, settings in [
            ("gds_path.*are missing", {f"{PLACE}.gds_path": None}, {}),
            ("are there together", {f"{PLACE}.tiers": []}, {}),
            ("host or gpu", {f"{PLACE}.save_from": "disk"}, {}),
            ("hipfile", {}, {"gds_backend": "hipfile"}),
            (r"kvtier.byte'\].*no such setting.*write 'storage_plugin.kvtier.bytes'", {f"{PLACE}.byte": "1GiB"}, {}),
            (r"'kvtier.gds_shap'\].*write 'kvtier.gds_shape'", {"kvtier.gds_shap": "2x4x16x64"}, {}),
            ("bytes'. is the cap of gds_path", {f"{PLACE}.gds_path": None, f"{PLACE}.tiers": [self.tier()]}, {}),
            # Files of LMCache's own layout hold chunks as they are.
            (r"kvtier.encode'\].*no such setting", {f"{PLACE}.encode": ["zstd"]}, {}),
            ("HOST:PORT", {f"{PLACE}.metrics": "9464"}, {}),
            ("2 of storage_plugins", self.second(), {"storage_plugins": ["kvtier", "other"]}),
        ]:
            with self.subTest(says), self.assertLogs("lmcache.v1.storage_backend", "ERROR") as log:
                engine = self.engine(extra, **settings)
            self.assertRegex("\n".join(log.output), says)
            self.assertNotIn("kvtier", engine.storage_manager.storage_backends)
            self.stop()

    def tier(self):
        return {"type": "gds", "path": self.dir, "bytes": 1 << 26, "free_min": 0}

    def test_metrics_are_served_beside_the_tiers(self):
        with self.assertLogs("kvtier", "INFO") as log:
            engine = self.engine({f"{PLACE}.metrics": "127.0.0.1:0"})
        [line] = [line for line in log.output if "metrics at" in line]
        address = line.rpartition(" ")[2]
        with urllib.request.urlopen(address, timeout=60) as answer:
            self.assertIn("kvtier_healthy", answer.read().decode())
        self.backend(engine).close()
        with self.assertRaises(OSError):
            urllib.request.urlopen(address, timeout=60)

    def test_a_used_port_disables_metrics_and_not_the_tiers(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with self.assertLogs("kvtier", "ERROR") as log:
                engine = self.engine({f"{PLACE}.metrics": address})
        self.assertRegex("\n".join(log.output), f"cannot serve metrics at .*{address}.*without metrics")
        tokens = list(range(CHUNK))
        self.stored(engine, tokens, len(tokens))

    def second(self):
        return {"storage_plugin.other.module_path": self.module_path, "storage_plugin.other.class_name": self.class_name}

    def test_lmcaches_own_backend_on_the_same_files_is_refused(self):
        config = mock.Mock(gds_path="/kv", extra_config={f"{PLACE}.class_name": "C"}, storage_plugins=["kvtier"])
        from kvtier.lmcache import _gds_settings

        with self.assertRaisesRegex(ValueError, r"starts LMCache's own.*move it to extra_config\['storage_plugin.kvtier.gds_path'\]"):
            _gds_settings.settings(config, "kvtier", "cpu")


class Devices(unittest.TestCase):
    """The GPUs that are synchronized. The stand-in has no torch streams, so torch is mocked here."""

    def test_each_gpu_of_the_objects_is_synchronized_once(self):
        first, second = torch.device("cuda:1"), torch.device("cuda:2")
        streams = {first: 70, second: 0}
        objs = [self.obj(at, device) for at, device in ((4096, first), (8192, torch.device("cpu")), (12288, second), (16384, first))]
        waited = []
        with (
            mock.patch.object(_objects._native, "is_on_gpu", lambda address: address != 8192),
            mock.patch.object(torch.cuda, "is_initialized", lambda: True),
            mock.patch.object(torch.cuda, "synchronize", lambda device=None: waited.append(device)),
            mock.patch.object(torch.cuda, "current_stream", lambda device=None: mock.Mock(cuda_stream=streams[device])),
        ):
            shown = _objects.memory(objs)
        self.assertCountEqual(waited, [first, second])
        self.assertIs(shown[1], objs[1].byte_array)
        faces = [one.__cuda_array_interface__ for at, one in enumerate(shown) if at != 1]
        self.assertEqual([(face["data"][0], face["stream"]) for face in faces], [(4096, 70), (12288, 1), (16384, 70)])

    def obj(self, address, device):
        return mock.Mock(data_ptr=address, raw_tensor=mock.Mock(device=device), tensor=None, **{"get_size.return_value": 64})


class Hashes(Gds):
    """LMCache may name chunks differently in each process where vLLM chooses the beginning of their chains."""

    def vllm(self, *functions, seed=None):
        utils = mock.Mock(spec=[*functions, "NONE_HASH"], NONE_HASH=7)
        names = ["vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.kv_cache_utils"]
        self.enterContext(mock.patch.dict(sys.modules, {name: utils for name in names}))
        self.enterContext(mock.patch.dict(os.environ, {} if seed is None else {"PYTHONHASHSEED": seed}))
        if seed is None:
            os.environ.pop("PYTHONHASHSEED", None)

    def why(self, algorithm):
        return _hash_check.unstable(mock.Mock(pre_caching_hash_algorithm=algorithm))

    def test_without_a_seed_the_plugin_logs_that_nothing_will_be_found(self):
        self.vllm("init_none_hash", "resolve_none_hash_seed")
        with self.assertLogs("kvtier", "ERROR") as log:
            self.engine()
        self.assertIn("PYTHONHASHSEED=0", "\n".join(log.output))
        self.stop()

    def test_algorithms_without_a_seed_are_not_reported(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("PYTHONHASHSEED", None)
            self.assertIsNone(self.why("builtin"), "there is no vLLM here")
        self.vllm()
        self.assertIsNone(self.why("builtin"), "a vLLM that chooses nothing")

    def test_a_seed_is_enough(self):
        self.vllm("init_none_hash", seed="0")
        self.assertIsNone(self.why("builtin"))

    def test_vllm_without_a_fixed_none_hash_needs_a_seed_for_all_algorithms(self):
        self.vllm("init_none_hash")
        for algorithm in ("builtin", "sha256_cbor", "xxhash"):
            self.assertIn(f"'{algorithm}' begin differently", self.why(algorithm))

    def test_vllm_with_a_fixed_none_hash_needs_a_seed_for_some_algorithms(self):
        self.vllm("init_none_hash", "resolve_none_hash_seed")
        for algorithm, is_stable in (("builtin", False), ("xxhash", False), ("unheard_of", False), ("sha256_cbor", True)):
            self.assertEqual(self.why(algorithm) is None, is_stable, algorithm)

    def test_random_is_a_seed_for_vllms_own_algorithms_only(self):
        self.vllm("init_none_hash", seed="random")
        self.assertIn("'random'", self.why("builtin"))
        self.assertIsNone(self.why("sha256_cbor"))


@unittest.skipUnless(LIBRARY, "KVTIER_FAKEGPU does not say where the stand-in for libcuda is")
class OnStandIn(unittest.TestCase):
    """Runs each test of `gds_device.py` in a process over the stand-ins, and checks for leaks on the GPU."""

    def run_there(self, name):
        with tempfile.TemporaryDirectory() as place:
            (pathlib.Path(place) / "libcuda.so.1").symlink_to(LIBRARY)
            env = {
                **os.environ,
                "LD_LIBRARY_PATH": f"{place}:{os.environ.get('LD_LIBRARY_PATH', '')}",
                "FAKEGPU_REPORT": f"{place}/report",
            }
            done = subprocess.run(
                [sys.executable, "-m", "unittest", f"gds_device.OnGpu.{name}"],
                env=env,
                cwd=pathlib.Path(__file__).parent,
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stderr, r"Ran 1 test in[^\n]*\n\nOK\n")
            lines = dict(line.rsplit(" ", 1) for line in (pathlib.Path(place) / "report").read_text().splitlines())
            left = {what: n for what, n in lines.items() if what.startswith("leaked ") and n != "0"}
            self.assertEqual(left, {}, "never released")

    def test_loads_go_into_memory_of_the_gpu(self):
        self.run_there("test_loads_go_into_memory_of_the_gpu")

    def test_saves_take_memory_of_the_gpu(self):
        self.run_there("test_saves_take_memory_of_the_gpu")

    def test_a_tier_that_encodes_takes_the_type_from_lmcaches_keys(self):
        self.run_there("test_a_tier_that_encodes_takes_the_type_from_lmcaches_keys")

    def test_lmcache_and_kvtier_read_each_others_files_saved_from_the_gpu(self):
        self.run_there("test_lmcache_and_kvtier_read_each_others_files_saved_from_the_gpu")

    def test_without_free_gpu_memory_loads_go_into_pinned_memory(self):
        self.run_there("test_without_free_gpu_memory_loads_go_into_pinned_memory")


if __name__ == "__main__":
    unittest.main()
