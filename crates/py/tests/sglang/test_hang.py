"""A device that hangs under the backend: no page is written to after a call, new requests do not wait, and it comes back."""

import os
import sys
import threading
import time

from host_pools import fill, indices, read
from scene import Case, keys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import hang  # noqa: E402


class Hung(Case):
    def setUp(self):
        super().setUp()
        self.device = hang.Device()
        # The tiers close before that.
        self.addCleanup(self.device.close)
        self.addCleanup(self.device.go_on)

    def test_a_load_ends_only_with_its_memory_and_other_calls_by_their_deadline(self):
        backend = self.open(tiers=[self.file(path=self.device.path + "/kv")], params={"timeout_seconds": 5})
        self.store(backend, range(8))
        pool, done = self.pool(backend), []
        self.device.hang()
        thread = threading.Thread(target=lambda: done.append(backend.batch_get_v1(keys(range(4)), indices(range(10, 14)))))
        thread.start()
        time.sleep(5.5)
        # The kernel may still write: SGLang, which would reuse the pages, waits for the call.
        self.assertEqual(done, [])
        began = time.monotonic()
        self.assertEqual(backend.batch_exists(keys(range(4, 8))), 0, "a request would wait for the device too")
        self.assertLess(time.monotonic() - began, 4)
        for row in range(20, 24):
            fill(pool, row, row)
        self.assertEqual(backend.batch_set_v1(keys(range(100, 104)), indices(range(20, 24))), [False] * 4)
        # What waited for the device would not end before it goes on.
        self.device.go_on()
        thread.join(300)
        (loaded,) = done
        pages = [read(pool, row) for row in range(10, 14)]
        time.sleep(0.1)
        self.assertEqual([read(pool, row) for row in range(10, 14)], pages)
        for n in range(4):
            if loaded[n]:
                self.assertEqual(pages[n], self.content(pool, n))
        self.eventually(lambda: backend.batch_exists(keys(range(4, 8))) == 4)
        self.eventually(lambda: self.store(backend, range(4)) == [True] * 4)
        self.assertEqual(self.load(backend, range(8)), ([True] * 8, [True] * 8))
