"""Layout ``vllm-fs``: a directory of vLLM's own ``fs`` tier is taken over, and given back."""

import json
import os
import time

import scene
from scene import HIT, MISS, Case, Memory, Spec, config, content, keys
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory


class Files(Case):
    def vllm_fs(self, spec=None):
        """vLLM's own tier over the same directory."""
        memory = Memory()
        given = {"type": "fs", "root_dir": self.dir, "n_read_threads": 1, "n_write_threads": 1}
        tier = SecondaryTierFactory.create_secondary_tier(given, memory.view, Spec(spec or config()))
        tier.memory = memory
        self.addCleanup(tier.shutdown)
        return tier

    def ours(self, **more):
        return self.open([self.file(layout="vllm-fs")], **more)

    def end(self, tier, job, seconds=300):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for result in tier.get_finished_jobs():
                if result.job_id == job:
                    return result
            time.sleep(0.0005)
        self.fail("the job does not end")

    def test_a_directory_of_the_fs_tier_is_taken_over(self):
        theirs = self.vllm_fs()
        self.assertTrue(self.store(theirs, range(6)).success)
        tier = self.ours()
        self.assertEqual(self.settled(tier, range(8))[0], [HIT] * 6 + [MISS] * 2)
        self.assertEqual(self.load(tier, range(6))[1], [True] * 6)

    def test_the_fs_tier_reads_what_is_stored(self):
        tier = self.ours()
        self.assertTrue(self.store(tier, range(6)).success)
        self.assertTrue(self.store(tier, range(2), group=0).success)
        before = self.run_configs()
        tier.shutdown()
        theirs = self.vllm_fs()
        self.assertEqual(self.run_configs(), before)
        self.assertEqual(self.settled(theirs, range(8))[0], [HIT] * 6 + [MISS] * 2)
        self.assertEqual(self.load(theirs, range(6))[1], [True] * 6)

    def test_the_configuration_file_is_that_of_vllm(self):
        self.vllm_fs().shutdown()
        of_vllm = self.run_configs()
        self.assertEqual(len(of_vllm), 1)
        self.setUp()
        tier = self.ours()
        self.store(tier, [0])
        self.assertEqual(list(self.run_configs().values()), list(of_vllm.values()))

    def test_engines_of_two_configurations_do_not_mix(self):
        first = self.ours()
        self.store(first, range(4))
        first.shutdown()
        other = self.ours(spec=config(dtype="float16"))
        self.assertEqual(self.settled(other, range(4))[0], [MISS] * 4)
        self.assertEqual(self.load(other, range(4))[1], [False] * 4)

    def test_a_flipped_bit_is_a_miss_where_kvtier_stored_the_file(self):
        tier = self.ours()
        self.store(tier, range(2))
        path = next(path for path in self.files() if path.endswith(".bin"))
        with open(path, "r+b") as file:
            file.seek(scene.ROW // 2)
            byte = file.read(1)[0]
            file.seek(scene.ROW // 2)
            file.write(bytes([byte ^ 1]))
        result, right = self.load(tier, range(2))
        self.assertEqual((result.success, sum(right)), (False, 1))

    def test_a_request_with_a_tenant_is_computed_and_disturbs_no_other(self):
        tier = self.ours()
        self.store(tier, range(2))
        with_tenant = self.request(tier, {"kvtier": {"tenant": "alice"}})
        self.assertEqual(self.lookup(tier, range(2), with_tenant), [MISS] * 2)
        self.assertEqual(self.settled(tier, range(4))[0], [HIT] * 2 + [MISS] * 2)

    def run_configs(self):
        """The content of each config.json, by its path below the directory."""
        found = {}
        for path in self.files():
            if os.path.basename(path) == "config.json":
                with open(path) as file:
                    text = file.read()
                json.loads(text)
                found[os.path.relpath(path, self.dir)] = text
        return found
