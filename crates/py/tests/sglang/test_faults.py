"""Faults under the backend: what is wrong is a miss, and never a wrong byte."""

import os
import sys
import time

import host_pools
from host_pools import fill, indices, mha_pool, read
from real_sglang import torch
from scene import Case, key, keys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import hang  # noqa: E402


class Files(Case):
    def damage(self, change):
        backend = self.open()
        self.store(backend, range(8))
        backend.close()
        files = self.files()
        self.assertEqual(len(files), 8)
        for at, path in enumerate(files):
            change(at, path)
        return self.open()

    def assert_misses_and_comes_back(self, backend):
        done, right = self.load(backend, range(8))
        self.assertEqual(done, [False] * 8)
        self.assertEqual(backend.batch_exists(keys(range(8))), 0)
        self.store(backend, range(8))
        self.assertEqual(backend.batch_exists(keys(range(8))), 8)
        self.assertEqual(self.load(backend, range(8), range(8, 16)), ([True] * 8, [True] * 8))

    def test_one_flipped_bit_in_each_file(self):
        def flip(at, path):
            with open(path, "r+b") as file:
                file.seek(100 + 97 * at)
                byte = file.read(1)[0]
                file.seek(100 + 97 * at)
                file.write(bytes([byte ^ 1 << at]))

        backend = self.damage(flip)
        self.assertEqual(backend.batch_exists(keys(range(8))), 8)
        self.assert_misses_and_comes_back(backend)
        self.assertEqual(self.counter(backend, "misses_corrupt"), 8)

    def test_cut_files(self):
        self.assert_misses_and_comes_back(self.damage(lambda at, path: os.truncate(path, (0, 1, 512, 4096, 5000, 3000, 100, 2)[at])))

    def test_deleted_files(self):
        self.assert_misses_and_comes_back(self.damage(lambda at, path: os.remove(path)))

    def test_swapped_files(self):
        def swap(at, path):
            if at % 2:
                other = self.files()[at - 1]
                os.rename(path, path + ".tmp")
                os.rename(other, path)
                os.rename(path + ".tmp", other)

        self.assert_misses_and_comes_back(self.damage(swap))

    def test_a_page_that_changes_during_a_store_is_never_loaded_as_something_else(self):
        import threading

        backend = self.open()
        pool, stop = self.pool(backend), threading.Event()

        def scribble():
            n = 0
            while not stop.is_set():
                n += 1
                pool.kv_buffer.view(torch.uint8).numpy().reshape(-1)[:4000] = n % 250

        thread = threading.Thread(target=scribble)
        thread.start()
        try:
            for n in range(40):
                backend.batch_set_v1([key(n)], indices([0]))
        finally:
            stop.set()
            thread.join()
        fill(pool, 0, 1)
        for n in range(40):
            fill(pool, 20, 5)
            # What is loaded is what the file's checksum says, whatever moment of the page it was.
            before = read(pool, 20)
            if backend.batch_get_v1([key(n)], indices([20])) != [True]:
                self.assertEqual(backend.batch_exists([key(n)]), 0)
            else:
                self.assertNotEqual(read(pool, 20), before)

    def test_a_full_cap_is_kept_and_no_error(self):
        backend = self.open(tiers=[self.file(bytes="1MiB")])
        for n in range(0, 400, 16):
            self.assertEqual(self.store(backend, range(n, n + 16)), [True] * 16)
        self.assertLess(sum(os.path.getsize(path) for path in self.files()), 2 << 20)
        self.assertEqual(self.load(backend, range(384, 400)), ([True] * 16, [True] * 16))

    def test_a_full_disk_costs_pages_and_nothing_else(self):
        device = hang.Device(bytes=16 << 20)
        self.addCleanup(device.close)
        backend = self.open(tiers=[self.file(path=device.path + "/kv", bytes="1GiB")])
        self.assertEqual(self.store(backend, range(16)), [True] * 16)
        # All that is left is another program's.
        with open(device.path + "/other", "wb", buffering=0) as file:
            with self.assertRaises(OSError):
                while True:
                    file.write(bytes(4096))
        for n in range(100, 260, 16):
            stored = self.store(backend, range(n, n + 16))
            done, right = self.load(backend, range(n, n + 16))
            self.assertEqual([is_right for is_right, is_done in zip(right, done) if is_done], [True] * sum(done))
            self.assertLessEqual(sum(done), sum(stored))
        os.remove(device.path + "/other")
        self.eventually(lambda: self.store(backend, range(300, 316)) == [True] * 16)
        self.assertEqual(self.load(backend, range(300, 316)), ([True] * 16, [True] * 16))
        backend.close()


class Processes(Case):
    def test_a_killed_engine_leaves_whole_pages_only(self):
        stored = self.kill_while_it_stores(os.path.dirname(os.path.abspath(__file__)), 48)
        backend = self.open()
        self.assertGreaterEqual(backend.batch_exists(keys(range(stored))), stored - 8)
        for n in range(0, stored + 16, 8):
            done, right = self.load(backend, range(n, n + 8))
            self.assertEqual([is_right for is_right, is_done in zip(right, done) if is_done], [True] * sum(done))

    def test_two_engines_on_one_directory(self):
        first, second = self.open(), self.open()
        self.store(first, range(4))
        self.eventually(lambda: second.batch_exists(keys(range(4))) == 4)
        self.assertEqual(self.load(second, range(4))[1], [True] * 4)
        self.store(second, range(4, 8))
        self.assertEqual(self.load(first, range(8), range(8, 16))[1], [True] * 8)

    def test_a_rank_that_never_stores_tries_again(self):
        # A page was missing when this rank loaded it, and another rank stores it again.
        reader = self.open(host_pools.mla_pool(), is_mla_model=True, tp_rank=1, tp_size=2)
        writer = self.open(host_pools.mla_pool(), is_mla_model=True, tp_rank=0, tp_size=2)
        self.assertEqual(self.load(reader, [1])[0], [False])
        self.store(writer, [1])
        self.eventually(lambda: reader.batch_exists(keys([1])) == 1, 60)
        self.assertEqual(self.load(reader, [1]), ([True], [True]))


class Late(Case):
    """Calls whose deadline passes while a medium still uses their pages."""

    HEADS = 1024
    BYTES = 2 * host_pools.LAYERS * host_pools.TOKENS * HEADS * host_pools.DIM * 2

    def late(self):
        """A backend with large pages whose calls have no time."""
        spec = [self.file(bytes="1GiB")]
        backend = self.open(mha_pool(heads=self.HEADS), tiers=spec)
        self.assertEqual(self.store(backend, range(8)), [True] * 8)
        backend.close()
        return self.open(mha_pool(heads=self.HEADS), tiers=spec, params={"timeout_seconds": 0.001})

    def test_pages_of_a_late_load_are_not_written_after_the_call(self):
        backend, late = self.late(), 0
        pool = self.pool(backend)
        for _ in range(12):
            done = backend.batch_get_v1(keys(range(8)), indices(range(8)))
            late += not all(done)
            # SGLang gives the pages to others at once.
            for row in range(8):
                fill(pool, row, 500 + row)
            before = [read(pool, row) for row in range(8)]
            time.sleep(0.01)
            self.assertEqual([read(pool, row) for row in range(8)], before, "written to after the end of the call")
        self.assertGreater(late, 0, "no call was late")

    def test_close_waits_for_pages_that_a_medium_still_reads(self):
        backend = self.late()
        pool = self.pool(backend)
        for row in range(8):
            fill(pool, row, row)
        backend.batch_set_v1(keys(range(50, 58)), indices(range(8)))
        backend.close()
        for row in range(8):
            fill(pool, row, 99)
        again = self.open(mha_pool(heads=self.HEADS), tiers=[self.file(bytes="1GiB")])
        for n in range(8):
            if again.batch_get_v1([key(50 + n)], indices([20])) == [True]:
                fill(self.pool(again), 21, n)
                self.assertEqual(read(self.pool(again), 20), read(self.pool(again), 21))
