"""Memory of a real GPU, allocated by torch. Skipped if torch finds no GPU; `device.py` runs over a stand-in everywhere.

`KVTIER_GPU_TIER` adds settings to the tier, as JSON: `{"cufile": "require"}` runs the same tests by cuFile."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import kvtier

MIB = 1 << 20
LIMIT_SECONDS = 300
# How torch can get its memory: by cudaMalloc, mapped piece by piece, and from a pool of the driver's.
ALLOCATORS = {"native": "", "mapped": "expandable_segments:True", "pool": "backend:cudaMallocAsync"}


def torch_sees_a_gpu():
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


@unittest.skipUnless(torch_sees_a_gpu(), "torch finds no GPU here")
class OnAGpu(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(place.cleanup)
        self.dir = place.name

    def store(self):
        store = kvtier.Store(tiers=[tier(self.dir)])
        self.addCleanup(store.close)
        return store

    def test_tensors_of_any_type_go_out_and_come_back(self):
        import torch

        store = self.store()
        for n, dtype in enumerate([torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int64]):
            source = torch.randint(0, 100, (3, 65_537), device="cuda").to(dtype)
            self.assertEqual(store.save([key(n)], [source]), [True])
            into = torch.zeros_like(source)
            self.assertEqual(store.load([key(n)], [into]), [source.nbytes])
            self.assertTrue(torch.equal(into, source), dtype)
            # The same bytes in host memory, and from there on the GPU again.
            host = bytearray(source.nbytes)
            store.load([key(n)], [host])
            self.assertEqual(bytes(host), source.cpu().view(torch.uint8).numpy().tobytes())
            store.save([key(100 + n)], [bytes(host)])
            store.load([key(100 + n)], [into.zero_()])
            self.assertTrue(torch.equal(into, source), dtype)

    def test_a_part_of_a_tensor_leaves_the_rest_alone(self):
        import torch

        store = self.store()
        whole = torch.randint(0, 256, (20 * MIB,), dtype=torch.uint8, device="cuda")
        part = whole[4099 : 4099 + 9 * MIB + 5]
        store.save([key(1)], [part])
        into = torch.zeros_like(whole)
        self.assertEqual(store.load([key(1)], [into[77 : 77 + part.numel()]]), [part.numel()])
        self.assertTrue(torch.equal(into[77 : 77 + part.numel()], part))
        self.assertEqual(int(into[:77].sum() + into[77 + part.numel() :].sum()), 0)

    def test_a_save_waits_for_the_stream_that_fills_and_a_load_for_the_one_that_empties(self):
        import torch

        store = self.store()
        for n, stream in enumerate([torch.cuda.Stream(), torch.cuda.current_stream()]):
            with torch.cuda.stream(stream):
                tensor = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
                torch.cuda._sleep(200_000_000)
                tensor.fill_(n + 1)
                self.assertEqual(store.save([key(n)], [tensor]), [True])
                torch.cuda._sleep(200_000_000)
                tensor.fill_(99)
                self.assertEqual(store.load([key(n)], [tensor]), [tensor.nbytes])
                self.assertTrue(bool((tensor == n + 1).all()))

    def test_threads_with_streams_of_their_own_get_their_own_bytes(self):
        import torch

        store, wrong = self.store(), []

        def work(thread):
            generator = torch.Generator(device="cuda").manual_seed(thread)
            with torch.cuda.stream(torch.cuda.Stream()):
                for n in range(12):
                    size = int(torch.randint(1, 6 * MIB, (1,), generator=torch.Generator().manual_seed(100 * thread + n)))
                    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)
                    one = key(1000 * thread + n)
                    store.save([one], [source])
                    into = torch.empty_like(source)
                    if store.load([one], [into]) != [size] or not torch.equal(into, source):
                        wrong.append((thread, n))

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        [thread.start() for thread in threads]
        [thread.join(LIMIT_SECONDS) for thread in threads]
        self.assertEqual(wrong, [])
        self.assertEqual(len(list(store.list())), 96)

    def test_each_way_that_torch_gets_memory_is_served(self):
        for name, setting in ALLOCATORS.items():
            with self.subTest(allocator=name), tempfile.TemporaryDirectory() as place:
                env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting, "KVTIER_PLACE": place}
                done = subprocess.run(
                    [sys.executable, __file__], env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS
                )
                self.assertEqual((done.returncode, done.stdout.split()), (0, ["done"]), done.stdout + done.stderr)

    def test_the_tests_over_the_stand_in_run_on_a_gpu(self):
        for name in ("round_trip", "encoded", "streams", "refusals", "capsules"):
            with self.subTest(name), tempfile.TemporaryDirectory() as place:
                script = pathlib.Path(__file__).parent / "device.py"
                done = subprocess.run(
                    [sys.executable, str(script), name],
                    env={**os.environ, "KVTIER_PLACE": f"{place}/kv"},
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_SECONDS,
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


def tier(place):
    return {"type": "gds", "path": place, "bytes": 4 << 30, "free_min": 0, **json.loads(os.environ.get("KVTIER_GPU_TIER", "{}"))}


def key(n):
    return kvtier.Key("org/model", n.to_bytes(32, "big"))


def large():
    """A tensor of more than one mapping, a part across two of them, and small ones of one block."""
    import torch

    with kvtier.Store(tiers=[tier(os.environ["KVTIER_PLACE"])]) as store:
        whole = torch.randint(0, 256, (100 * MIB + 3,), dtype=torch.uint8, device="cuda")
        small = [torch.randint(0, 256, (70_000 + n,), dtype=torch.uint8, device="cuda") for n in range(8)]
        for n, source in enumerate([whole, whole[19 * MIB : 41 * MIB + 1], *small]):
            assert store.save([key(n)], [source]) == [True]
            into = torch.zeros(source.numel() + 64, dtype=torch.uint8, device="cuda")
            assert store.load([key(n)], [into]) == [source.numel()]
            assert torch.equal(into[: source.numel()], source) and int(into[source.numel() :].sum()) == 0
    print("done")


if __name__ == "__main__":
    large()
