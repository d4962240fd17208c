"""Callers that pass invalid keys, have a log handler that raises, start without a frame, or submit a hundred thousand keys at once."""

import _thread
import logging
import sys
import time
import unittest

import kvtier
from kvtier import Key, Store
from test_connector import MIB, Case, ObjectKey, aligned, filled, key

MANY = 100_000


class Keys(Case):
    def test_an_invalid_key_is_an_error_of_the_batch_and_does_not_raise(self):
        w = self.wrapped()
        self.quiet()
        w.set([key(1)], [filled(1)])
        wrong = [7, None, b"bytes", ObjectKey("text"), ObjectKey(b"1", kv_rank=1 << 80), ObjectKey(b"1", object_group_id=-1)]
        wrong += ["llama\udc80@00010000@0@aa", "", "@", "@@@@@@"]
        for one in wrong:
            with self.subTest(one):
                ok, error, each = w.get([key(1), one], [aligned(MIB), aligned(MIB)])
                self.assertEqual((ok, each), (False, [True, False]), "the other is a key")
                self.assertIn("none of LMCache's", error)
                self.assertEqual(w.exists([one])[2], [False])
                self.assertFalse(w.set([one], [filled(1)])[0])
                self.assertEqual(w.delete([one])[2], [False])

    def quiet(self):
        logger = logging.getLogger("kvtier")
        self.addCleanup(setattr, logger, "disabled", False)
        logger.disabled = True

    def test_a_wrong_key_is_not_repeated_at_length_nor_its_salt(self):
        w = self.wrapped()
        for wrong in ("x" * (8 << 20), "m" * (1 << 20) + "@00010000@0@aa@secret-salt", "model@zz@0@aa@secret-salt"):
            with self.assertLogs("kvtier") as log:
                _, error, _ = w.exists([wrong])
            said = error + "".join(log.output)
            self.assertLess(len(said), 4000)
            self.assertNotIn("secret-salt", said)

    def test_no_message_about_a_key_contains_its_salt(self):
        salted, store = Key("m", b"1", salt="pepper"), Store(tiers=[{"type": "host", "bytes": MIB}])
        self.addCleanup(store.close)
        for give in (
            lambda: Key("m", b"1", salt="tenant@pepper"),
            lambda: Key("m@00000000@0@31@pepper", b"1"),
            lambda: Key("m", "pepper", salt="pepper"),
            lambda: Key("m", b"1", rank="pepper", salt="pepper"),
            lambda: store.lookup(salted),
            lambda: store.lookup("m@00000000@0@31@pepper"),
            lambda: store.lookup(["m@00000000@zz@31@pepper"]),
            lambda: store.lookup([b"m@00000000@0@31@pepper"]),
            lambda: store.save([salted], []),
            lambda: store.save([salted], [b""]),
        ):
            with self.assertRaises((TypeError, ValueError)) as raised:
                give()
            self.assertNotIn("pepper", str(raised.exception))
        self.assertNotIn("pepper", repr(salted))
        self.assertEqual(str(salted), "m@00000000@0@31@pepper", "which is how a tier is given it")

    def test_names_of_models_may_be_any_text(self):
        w = self.wrapped()
        for n, model in enumerate(["модель/七", "ünïcode", "a b\tc", "..", "%40", "-SEP-", "x" * 512]):
            name = f"{model}@00010000@0@{n:064x}"
            self.assertTrue(w.set([name], [filled(n)])[0], model)
            into = aligned(MIB)
            self.assertEqual(w.get([name], [into])[2], [True])
            self.assertEqual(into.tobytes(), filled(n).tobytes())

    def test_a_key_that_is_twice_in_a_batch_is_answered_twice(self):
        w = self.wrapped()
        self.assertTrue(w.set([key(1), key(1)], [filled(1), filled(1)])[0])
        self.assertEqual(w.exists([key(1), key(1), key(2)])[2], [True, True, False])
        into = [aligned(MIB) for _ in range(2)]
        self.assertEqual(w.get([key(1), key(1)], into)[2], [True, True])
        self.assertEqual([view.tobytes() for view in into], [filled(1).tobytes()] * 2)
        self.assertEqual(w.delete([key(1), key(1)])[2], [True, True])
        self.assertEqual(w.exists([key(1)])[2], [False])

    def test_a_hold_may_last_for_ever(self):
        tiers = kvtier._native.Tiers({"tiers": [{"type": "host", "bytes": MIB}]}, hold_seconds=1e19)
        self.addCleanup(tiers.close)
        tiers.save([key(1)], [b"x" * 4096])
        self.assertEqual(tiers.lookup([key(1)], hold=True)[1], [4096])
        self.assertEqual(tiers.remove([key(1)])[1], [-1])
        tiers.release([key(1)])
        self.assertEqual(tiers.remove([key(1)])[1], [1])


class Logs(Case):
    def test_a_log_handler_that_raises_costs_no_completion(self):
        w, seen = self.wrapped(), unraisable(self)

        class Broken(logging.Filter):
            def filter(self, record):
                raise RuntimeError("on purpose")

        broken, logger = Broken(), logging.getLogger("kvtier")
        logger.addFilter(broken)
        self.addCleanup(logger.removeFilter, broken)
        futures = [w.submit("submit_batch_get", ["no key"], [aligned(MIB)]) for _ in range(4)]
        self.assertEqual([w.wait(future)[2] for future in futures], [[False]] * 4)
        self.assertTrue(w.set([key(1)], [filled(1)])[0], "and the thread that drains is alive")
        self.assertTrue(any("on purpose" in str(one) for one in seen))


class Beginnings(Case):
    def test_a_thread_may_begin_with_a_connector(self):
        seen, limit = unraisable(self), time.monotonic() + 300
        _thread.start_new_thread(kvtier.Connector, (), {"config": "/nothere"})
        while not seen:
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.01)
        self.assertRegex(str(seen[0]), "/nothere", "and no missing frame")


def unraisable(case):
    """What `sys.unraisablehook` receives from now on."""
    seen = []
    case.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
    sys.unraisablehook = lambda one: seen.append(one.exc_value)
    return seen


class Many(Case):
    def test_a_hundred_thousand_at_once(self):
        store = Store(tiers=[{"type": "host", "bytes": 1 << 30}])
        self.addCleanup(store.close)
        keys = [Key("m", n.to_bytes(8, "big")) for n in range(MANY)]
        data = [n.to_bytes(8, "big") for n in range(MANY)]
        self.assertEqual(store.save(keys, data).count(True), MANY)
        self.assertEqual(store.lookup(keys), [8] * MANY)
        memory = bytearray(8 * MANY)
        into = memoryview(memory)
        self.assertEqual(store.load(keys, [into[8 * n : 8 * n + 8] for n in range(MANY)]), [8] * MANY)
        self.assertEqual(memory, b"".join(data))
        self.assertEqual(store.remove(keys), [True] * MANY)

    def test_a_hundred_thousand_misses(self):
        w = self.wrapped(timeout_seconds=120.0)
        keys = [key(n) for n in range(MANY)]
        self.assertTrue(w.set([keys[-1]], [filled(1)])[0])
        self.assertEqual(w.wait(w.submit("submit_batch_exists", keys), 120)[2].count(True), 1)
        memory = aligned(MANY * 8)
        into = [memory[8 * n : 8 * n + 8] for n in range(MANY - 1)] + [aligned(MIB)]
        self.assertEqual(w.wait(w.submit("submit_batch_get", keys, into), 120)[2], [False] * (MANY - 1) + [True])
        self.assertEqual(w.wait(w.submit("submit_batch_delete", keys), 120)[2], [True] * MANY)


if __name__ == "__main__":
    unittest.main()
