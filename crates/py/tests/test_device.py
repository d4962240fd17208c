"""GPU memory, over a stand-in for the driver's library. `device.py` runs in a child, since a process loads the library only once."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import kvtier

# The path of the stand-in, which cargo builds with the test programs.
LIBRARY = os.environ.get("KVTIER_FAKEGPU", "")
SCRIPT = pathlib.Path(__file__).parent / "device.py"
LIMIT_SECONDS = 120


class WithoutGpu(unittest.TestCase):
    def test_memory_of_a_missing_gpu_is_an_error(self):
        class Array:
            __cuda_array_interface__ = {"shape": (64,), "typestr": "|u1", "data": (4096, False), "version": 3}

        code = "import ctypes; ctypes.CDLL('libcuda.so.1')"
        if subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0:
            self.skipTest("this machine has a driver")
        with tempfile.TemporaryDirectory() as place, kvtier.Store(tiers=[tier(place)]) as store:
            for call in (store.save, store.load):
                with self.assertRaisesRegex(ValueError, "no NVIDIA driver here"):
                    call([kvtier.Key("m", b"k")], [Array()])
            self.assertEqual(store.save([kvtier.Key("m", b"k")], [b"host memory goes on"]), [True])


@unittest.skipUnless(LIBRARY, "KVTIER_FAKEGPU does not say where the stand-in for libcuda is")
class OverAStandIn(unittest.TestCase):
    """Each test of `device.py` by its name, after which nothing may be left on the GPU."""

    def run_there(self, name, **variables):
        with tempfile.TemporaryDirectory() as place:
            libraries = pathlib.Path(place) / "libraries"
            libraries.mkdir()
            (libraries / "libcuda.so.1").symlink_to(LIBRARY)
            before = os.environ.get("LD_LIBRARY_PATH", "")
            env = {
                **os.environ,
                "LD_LIBRARY_PATH": f"{libraries}:{before}",
                "FAKEGPU_REPORT": f"{place}/report",
                "KVTIER_PLACE": f"{place}/kv",
                **variables,
            }
            done = subprocess.run(
                [sys.executable, str(SCRIPT), name], env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("done", done.stdout)
            lines = dict(line.rsplit(" ", 1) for line in (pathlib.Path(place) / "report").read_text().splitlines())
            left = {name: n for name, n in lines.items() if name.startswith("leaked ") and n != "0"}
            self.assertEqual(left, {}, "never released")

    def test_chunks_saved_from_a_gpu_load_into_gpu_and_host_memory(self):
        self.run_there("round_trip")

    def test_a_tier_that_encodes_stores_chunks_of_a_gpu_and_returns_them(self):
        self.run_there("encoded")

    def test_memory_is_accessed_after_the_work_of_its_stream(self):
        self.run_there("streams", FAKEGPU_DELAY_US="20000")

    def test_unusable_memory_is_refused(self):
        self.run_there("refusals")

    def test_capsules_are_kept_until_the_end_and_no_longer(self):
        self.run_there("capsules")


def tier(place):
    return {"type": "gds", "path": place, "bytes": 1 << 26, "free_min": 0}


if __name__ == "__main__":
    unittest.main()
