"""A real engine, vLLM on the CPU, with kvtier as its storage: cold, ended, started anew and warm from kvtier alone; and with faults.

`cargo xtask nightly --only vllm` sets ``KVTIER_VLLM_MODEL``, the folder of the model.
"""

import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../.."))
import bucket  # noqa: E402
import hang  # noqa: E402

MODEL = os.environ.get("KVTIER_VLLM_MODEL")
if not MODEL:
    raise unittest.SkipTest("KVTIER_VLLM_MODEL names no folder: run `cargo xtask nightly --only vllm`")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "2",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# Tokens of a chunk: 8 blocks of 32.
CHUNK = 256
WORDS = 2000
PROMPT = 2000
FULL = PROMPT // CHUNK * CHUNK


def prompt(seed, tokens=PROMPT):
    return random.Random(seed).choices(range(WORDS), k=tokens)


class Engine:
    """One process of vLLM."""

    def __init__(self, tiers, dtype="float32"):
        self.log = tempfile.NamedTemporaryFile(prefix="vllm", suffix=".log")
        self.id = f"kvtier-test-{uuid.uuid4()}"
        words = [sys.executable, os.path.join(HERE, "generate.py"), MODEL, self.id, json.dumps(tiers)]
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, **ENVIRONMENT, "KVTIER_VLLM_DTYPE": dtype},
            text=True,
            start_new_session=True,
        )
        assert self.answer() == {"ready": True}

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"vLLM ended: {self.text()[-6000:]}"
        return json.loads(line)

    def send(self, **asked):
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()

    def ask(self, ids, out=8):
        self.send(ids=ids, out=out)
        return self.answer()

    def start(self, ids, out=8):
        """Starts a request, and leaves it to later requests to take it on. Returns its name."""
        self.send(ids=ids, out=out, later=True)
        return self.answer()["name"]

    def wait(self, name):
        self.send(wait=name)
        return self.answer()

    def counters(self):
        # vLLM reads its tiers once a second, in a step.
        time.sleep(1.1)
        self.ask(prompt(999, 20), 1)
        self.send(counters=True)
        return self.answer()

    def text(self):
        with open(self.log.name, errors="replace") as file:
            return file.read()

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process.stdout.close()

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # vLLM leaves its memory behind then.
        for region in glob.glob(f"/dev/shm/vllm_offload_{self.id}*"):
            os.remove(region)


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def file(self, **more):
        return {"type": "file", "path": self.dir, "bytes": "1GiB", "free_min": 0, **more}

    def tier(self, *tiers, **more):
        return [{"type": "KvtierTier", "module_path": "kvtier.vllm", "tiers": list(tiers), **more}]

    def engine(self, tiers, dtype="float32"):
        engine = Engine(tiers, dtype)
        self.addCleanup(engine.end)
        return engine

    def cold(self, tiers, wanted=None):
        """Answers of an engine that stores, after which it is killed."""
        engine = self.engine(tiers)
        answers = [engine.ask(ids) for ids in wanted or [prompt(1), prompt(2)]]
        self.assertEqual([one["cached"] for one in answers], [0] * len(answers))
        # Stores end in later steps.
        stored = engine.counters()
        engine.kill()
        return answers, stored

    def same_tokens(self, one, other):
        self.assertEqual(one["tokens"], other["tokens"])

    def files(self):
        return sorted(
            os.path.join(at, name)
            for at, _, names in os.walk(self.dir)
            for name in names
            if ".kvtier" not in at.split(os.sep) and not name.endswith(".json")
        )


class Restarted(Case):
    def proves(self, tiers):
        cold, _ = self.cold(tiers)
        warm = []
        for _ in range(2):
            engine = self.engine(tiers)
            warm.append([engine.ask(prompt(1)), engine.ask(prompt(2))])
            engine.end()
        for first, second, then in zip(warm[0], warm[1], cold):
            self.assertEqual(first["cached"], FULL)
            self.assertEqual(second["cached"], FULL)
            self.same_tokens(first, then)
            self.assertEqual(first["logprobs"], second["logprobs"])
        self.assertGreater(len({token for one in cold for token in one["tokens"]}), 2, "the model says one word only")

    def test_over_files(self):
        self.proves(self.tier(self.file()))

    def test_over_a_bucket(self):
        server = bucket.Server()
        self.addCleanup(server.stop)
        self.proves(self.tier(server.spec()))

    def test_over_files_over_a_bucket(self):
        server = bucket.Server()
        self.addCleanup(server.stop)
        self.proves(self.tier(self.file(), server.spec()))


class Encoded(Case):
    def test_chunks_of_bf16_are_stored_smaller_and_say_the_same(self):
        """vLLM names the type of the elements."""
        tiers = self.tier(self.file(encode=["bf16-split"]))
        engine = self.engine(tiers, "bfloat16")
        self.assertEqual(engine.ask(prompt(1))["cached"], 0)
        # Stores end in later steps.
        engine.counters()
        engine.end()
        # Keys and values of 4 layers with 4 heads of 64 elements, of 2 bytes each.
        raw = FULL * 4 * 4 * 64 * 2 * 2
        self.assertEqual(len(self.files()), FULL // CHUNK)
        self.assertLess(sum(map(os.path.getsize, self.files())), 0.75 * raw)
        warm = []
        # The second engine reads chunks that it would not encode.
        for spec in (tiers, self.tier(self.file())):
            engine = self.engine(spec, "bfloat16")
            warm.append(engine.ask(prompt(1)))
            engine.end()
        self.assertEqual([one["cached"] for one in warm], [FULL, FULL])
        self.same_tokens(*warm)
        self.assertEqual(warm[0]["logprobs"], warm[1]["logprobs"])


class Damaged(Case):
    def flip(self, files):
        self.assertEqual(len(files), 2 * FULL // CHUNK)
        for path in files:
            with open(path, "r+b") as file:
                for at in range(3, os.path.getsize(path) - 5000, 4096):
                    file.seek(at)
                    byte = file.read(1)[0]
                    file.seek(at)
                    # The exponent of a float.
                    file.write(bytes([byte ^ 64]))

    def test_a_flipped_bit_in_every_file_is_recomputed_and_counted(self):
        cold, _ = self.cold(self.tier(self.file()))
        self.flip(self.files())
        engine = self.engine(self.tier(self.file()))
        again = [engine.ask(prompt(1)), engine.ask(prompt(2))]
        for then, now in zip(cold, again):
            self.assertEqual(now["cached"], 0)
            self.same_tokens(then, now)
        self.assertGreaterEqual(engine.counters()["kvtier_load_misses_total corrupt"], 2)

    def test_vllms_own_tier_answers_wrong_tokens_from_the_same_damage(self):
        tiers = [{"type": "fs", "root_dir": self.dir}]
        cold, _ = self.cold(tiers)
        self.flip([path for path in self.files() if path.endswith(".bin")])
        engine = self.engine(tiers)
        again = [engine.ask(prompt(1)), engine.ask(prompt(2))]
        self.assertEqual([one["cached"] for one in again], [FULL, FULL])
        self.assertNotEqual([one["tokens"] for one in cold], [one["tokens"] for one in again])

    def test_cut_files_are_recomputed(self):
        cold, _ = self.cold(self.tier(self.file()))
        for n, path in enumerate(self.files()):
            os.truncate(path, os.path.getsize(path) * (n % 4) // 4)
        engine = self.engine(self.tier(self.file()))
        for then, ids in zip(cold, (prompt(1), prompt(2))):
            self.same_tokens(then, engine.ask(ids))


class Killed(Case):
    def test_killed_in_the_middle_of_stores(self):
        wanted = [prompt(n) for n in range(10, 16)]
        engine = self.engine(self.tier(self.file()))
        reference = [engine.ask(ids)["tokens"] for ids in wanted]
        engine.end()
        shutil.rmtree(self.dir)
        for count in (1, 3):
            engine = self.engine(self.tier(self.file()))
            for ids in wanted[:count]:
                engine.ask(ids)
            engine.send(ids=wanted[count], out=8)
            time.sleep(0.3)
            engine.kill()
        engine = self.engine(self.tier(self.file()))
        for ids, tokens in zip(wanted, reference):
            self.assertEqual(engine.ask(ids)["tokens"], tokens)


class Shared(Case):
    def test_two_engines_on_one_directory_and_one_cap(self):
        spec = self.tier(self.file(bytes="24MiB"))
        first, second = self.engine(spec), self.engine(spec)
        tokens = {}
        for n in range(30, 36):
            tokens[n] = first.ask(prompt(n))["tokens"]
            first.ask(prompt(998, 20), 1)
            # Two engines find each other's chunks within a second.
            time.sleep(1)
            now = second.ask(prompt(n))
            self.assertEqual(now["tokens"], tokens[n])
            self.assertEqual(now["cached"], FULL)
        used = sum(os.path.getsize(path) for path in self.files())
        self.assertLessEqual(used, 24 << 20)
        self.assertEqual(second.ask(prompt(30))["tokens"], tokens[30])


class Full(Case):
    def test_a_full_disk_costs_hits_only(self):
        place = os.path.join(self.dir, "small")
        os.mkdir(place)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", place], stderr=subprocess.PIPE)
        if mounted.returncode != 0:
            raise unittest.SkipTest(f"cannot mount: {mounted.stderr.decode()}")
        self.addCleanup(subprocess.run, ["umount", "-l", place], check=False)
        engine = self.engine(self.tier(self.file(path=place)))
        first = {n: engine.ask(prompt(n))["tokens"] for n in range(50, 56)}
        engine.end()
        engine = self.engine(self.tier(self.file(path=place)))
        for n, tokens in first.items():
            self.assertEqual(engine.ask(prompt(n))["tokens"], tokens)


class Down(Case):
    def test_a_bucket_that_is_down_hung_and_back(self):
        server = bucket.Server()
        self.addCleanup(lambda: server.stop())
        spec = self.tier(server.spec(), timeout_seconds=3)
        cold, _ = self.cold(spec)
        engine = self.engine(spec)
        # Hung: the server's process does not run.
        server.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        self.same_tokens(cold[0], engine.ask(prompt(1)))
        self.assertLess(time.monotonic() - began, 60)
        server.process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + 60
        while True:
            time.sleep(1)
            again = engine.ask(prompt(2) + prompt(int(time.monotonic() * 1000), 16))
            if again["cached"] == FULL:
                break
            self.assertLess(time.monotonic(), deadline, "it does not come back")
        server.stop()
        self.assertEqual(len(engine.ask(prompt(77))["tokens"]), 8)


class Hung(Case):
    def test_a_device_that_hangs_costs_time_alone(self):
        device = hang.Device()
        self.addCleanup(device.close)
        tiers = self.tier(self.file(path=device.path + "/kv", bytes="128MiB"), timeout_seconds=5)
        wanted = [prompt(1), prompt(2), prompt(3)]
        cold, _ = self.cold(tiers, wanted)
        engine = self.engine(tiers)
        # Before the engine ends, which waits for the device.
        self.addCleanup(device.go_on)
        device.hang()
        # Its chunks are found. It waits for them, since the kernel may write to their memory at any time.
        held = engine.start(wanted[0])
        time.sleep(6)
        # From the deadline of that load on the engine computes, though it has this prompt on the device too.
        began = time.monotonic()
        for _ in range(2):
            again = engine.ask(wanted[1])
            self.same_tokens(cold[1], again)
        self.assertLess(time.monotonic() - began, 120)
        self.assertEqual(engine.counters()["kvtier_overdue_loads"], 1)
        device.go_on()
        self.same_tokens(cold[0], engine.wait(held))
        # What was on the device all the time is found again.
        self.assertEqual(engine.ask(wanted[2])["cached"], FULL)


if __name__ == "__main__":
    unittest.main()
