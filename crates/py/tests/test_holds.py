"""The holds of a lookup are released key by key, over every kind of tier."""

import unittest

from bucket import Server
from kvtier import _native
from scripts import folder
from test_connector import ENGINE, key

KIB = 1 << 10


class Holds(unittest.TestCase):
    def one_by_one(self, tiers):
        store = _native.Tiers({"tiers": tiers}, load_releases=False)
        self.addCleanup(store.close)
        keys = [key(n) for n in range(3)]
        self.assertIsNone(store.save(keys, [bytes([n]) * 64 * KIB for n in range(3)])[0])
        self.assertEqual(store.lookup(keys, hold=True), (None, [64 * KIB] * 3))
        store.release(keys[:1])
        self.assertEqual(store.remove(keys), (None, [1, -1, -1]), "a released chunk is removed at once")
        self.assertEqual(store.lookup([keys[1]], hold=True), (None, [64 * KIB]))
        store.release(keys[1:])
        self.assertEqual(store.remove(keys), (None, [1, -1, 1]), "of two holds one is left")
        store.release([keys[1], keys[1], key(9)])
        self.assertEqual(store.remove(keys[1:2]), (None, [1]))
        self.assertEqual(store.lookup(keys), (None, [-1, -1, -1]))

    def test_in_memory(self):
        self.one_by_one([{"type": "host", "bytes": "8MiB"}])

    def test_in_files(self):
        self.one_by_one([{"type": "file", "path": folder(self), "bytes": "8MiB", **ENGINE}])

    def test_in_memory_over_files(self):
        self.one_by_one([{"type": "host", "bytes": "8MiB"}, {"type": "file", "path": folder(self), "bytes": "8MiB", **ENGINE}])

    def test_in_a_bucket(self):
        server = Server()
        self.addCleanup(server.stop)
        self.one_by_one([server.spec()])

    def test_a_load_ends_the_holds_of_its_keys(self):
        store = _native.Tiers({"tiers": [{"type": "file", "path": folder(self), "bytes": "8MiB", **ENGINE}]})
        self.addCleanup(store.close)
        keys = [key(n) for n in range(3)]
        store.save(keys, [bytes([n]) * 64 * KIB for n in range(3)])
        store.lookup(keys, hold=True)
        self.assertEqual(store.load(keys[:2], [bytearray(64 * KIB) for _ in range(2)]), (None, [64 * KIB] * 2))
        self.assertEqual(store.remove(keys), (None, [1, 1, -1]))
