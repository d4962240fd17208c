"""What the tests of adapters inside an engine share: a directory, waiting, and an engine that is killed while it stores."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

# Stores eight chunks at a time until it is killed, and prints how many are stored.
STORING = """
import sys
sys.path.insert(0, {folder!r})
import scene
class Engine(scene.Case):
    def runTest(self): pass
engine = Engine()
engine.setUp()
engine.dir = {dir!r}
opened = engine.open()
print("begun", flush=True)
for n in range(100000):
    engine.store(opened, range(8 * n, 8 * n + 8))
    print(8 * n + 8, flush=True)
"""


def normal_bf16(seed, length):
    """The bytes of normally distributed numbers in bf16, as those of KV caches are."""
    numbers = np.random.default_rng(seed).normal(size=length // 2).astype(np.float32)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


class AdapterCase(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def eventually(self, check, seconds=300):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = check()
            if found:
                return found
            time.sleep(0.005)
        self.fail("never so")

    def files(self):
        """The files of chunks."""
        return sorted(
            os.path.join(at, name)
            for at, _, names in os.walk(self.dir)
            for name in names
            if ".kvtier" not in at.split(os.sep)
        )

    def encoded(self, tiers):
        """Chunks that the first tier encoded, and the bytes stored of each raw byte of them."""
        counters = dict(tiers.tier_status()[0]["counters"])
        stored, raw = counters["encoded_stored_bytes"], counters["encoded_raw_bytes"]
        return counters["encoded_chunks"], stored / raw if raw else None

    def kill_while_it_stores(self, folder, at_least):
        """Runs an engine of the ``scene`` in a folder, and kills it after at least this number of chunks. Returns how many it said that it stored."""
        script = STORING.format(folder=folder, dir=self.dir)
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
        self.assertEqual(process.stdout.readline(), "begun\n")
        stored = 0
        while stored < at_least:
            stored = int(process.stdout.readline())
        process.kill()
        process.communicate()
        return stored
