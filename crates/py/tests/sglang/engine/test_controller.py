"""SGLang's own cache controller on CPU tensors with the backend below it: backups, prefetches, several ranks, detach and attach.

The controller and its threads, its queries and its acknowledgements are the real ones, over host pools that SGLang's constructors make. What it needs a GPU
for is the copy between a device pool and the host pool: the tests write into the host pool instead.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import unittest

if "KVTIER_SGLANG_ENGINE" not in os.environ:
    raise unittest.SkipTest("needs SGLang and torch: run `cargo xtask nightly --only sglang`")

import torch
import torch.distributed
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from host_pools import fill, indexer_pool, read  # noqa: E402

TOKENS, LAYERS, ROWS = 4, 3, 1024
# More than the controller moves with one call.
PAGES = 150
WAIT_S = 60


class Allocator:
    """What the controller asks of the allocator of a device pool."""

    def __init__(self, pool):
        self.pool = pool

    def get_kvcache(self):
        return self.pool

    def set_hicache_transfer_done_event(self, *event):
        pass


def pools(layout, is_mla):
    """A device pool in host memory, and the host pool that SGLang makes for it."""
    common = dict(host_to_device_ratio=2.0, host_size=0, page_size=TOKENS, layout=layout, pin_memory=False, device="cpu")
    common.update(device_capacity_tokens=ROWS, start_layer=0, end_layer=LAYERS)
    if is_mla:
        device = MLATokenToKVPool(ROWS, TOKENS, torch.bfloat16, 64, 32, LAYERS, "cpu", False)
        return device, MLATokenToKVPoolHost(device._mla_buffer_info(), target_layer_num=LAYERS, **common)
    device = MHATokenToKVPool(ROWS, TOKENS, torch.bfloat16, 2, 64, LAYERS, "cpu", False)
    return device, MHATokenToKVPoolHost(device._mha_buffer_info(), **common)


class Controller(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        cls.addClassCleanup(torch.distributed.destroy_process_group)

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def extra(self, **params):
        own = {"backend_name": "kvtier", "module_path": "kvtier.sglang", "class_name": "KvtierHiCache", "interface_v1": 1}
        return {**own, "tiers": [{"type": "file", "path": self.dir, "bytes": "256MiB", "free_min": 0}], **params}

    @contextlib.contextmanager
    def controller(self, layout="page_first", is_mla=False, rank=0, ranks=1, **params):
        place = dict(tp_rank=rank, tp_size=ranks, pp_rank=0, pp_size=1, attn_tp_rank=rank, attn_tp_size=ranks, attn_dp_rank=0, attn_dp_size=1)
        with get_parallel().override(**place, attn_dcp_size=1, attn_dcp_rank=0, dp_size=1):
            device, host = pools(layout, is_mla)
            group = torch.distributed.group.WORLD
            controller = cache_controller.HiCacheController(
                Allocator(device),
                host,
                TOKENS,
                group,
                threading.Event(),
                io_backend="direct",
                storage_backend="dynamic",
                prefetch_threshold=TOKENS,
                model_name="org/model",
                storage_backend_extra_config=self.extra(**params),
            )
            try:
                yield controller
            finally:
                controller.detach_storage_backend()

    def tokens(self, pages, first=0):
        return list(range(first, first + pages * TOKENS))

    def backup(self, controller, tokens):
        """Fills host pages and lets the controller store them. Returns the tokens that it acknowledges, and the bytes."""
        pages = len(tokens) // TOKENS
        rows = controller.mem_pool_host.alloc(pages * TOKENS)
        for page in range(pages):
            fill(controller.mem_pool_host, int(rows[page * TOKENS]) // TOKENS, tokens[page * TOKENS])
        content = self.content(controller, rows)
        hashes = cache_controller.get_storage_hash_str(tokens, None, page_size=TOKENS)
        controller.write_storage(rows, tokens, hashes)
        done = controller.ack_backup_queue.get(timeout=WAIT_S)
        controller.mem_pool_host.free(rows)
        return done.completed_tokens, content

    def content(self, controller, rows):
        return [read(controller.mem_pool_host, int(row) // TOKENS) for row in rows[::TOKENS]]

    def prefetch(self, controller, tokens):
        """Asks for the tokens as the scheduler does. Returns those that were found and those that came, and the bytes."""
        controller.prefetch_queue.put(cache_controller.PrefetchOperation("request", tokens))
        operation = controller.prefetch_hit_queue.get(timeout=WAIT_S)
        if operation.storage_hit_count == 0:
            return 0, 0, []
        operation.host_indices = controller.mem_pool_host.alloc(operation.storage_hit_count)
        controller.mem_pool_host.kv_buffer.zero_()
        controller.prefetch_buffer.put(operation)
        came = 0
        while not (ack := controller.ack_prefetch_queue.get(timeout=WAIT_S)).completed_req:
            came = ack.completed_tokens
        content = self.content(controller, operation.host_indices[:came])
        controller.mem_pool_host.free(operation.host_indices)
        return operation.storage_hit_count, came, content

    def assert_round_trip(self, controller):
        tokens = self.tokens(PAGES)
        stored, content = self.backup(controller, tokens)
        self.assertEqual(stored, len(tokens))
        found, came, loaded = self.prefetch(controller, self.tokens(PAGES + 20))
        self.assertEqual((found, came), (len(tokens), len(tokens)))
        self.assertEqual(loaded, content)

    def test_every_layout_and_both_interfaces(self):
        layouts = [("page_first", False), ("page_first_direct", False), ("layer_first", False), ("page_head", False)]
        layouts += [("page_first", True), ("page_first_direct", True), ("layer_first", True)]
        for (layout, is_mla), interface in [(one, interface) for one in layouts for interface in (0, 1)]:
            with self.subTest(layout, is_mla=is_mla, interface_v1=interface):
                shutil.rmtree(self.dir, ignore_errors=True)
                with self.controller(layout, is_mla, interface_v1=interface) as controller:
                    self.assertEqual(controller.page_get_func.__name__, "_page_get_zero_copy" if interface else "_generic_page_get")
                    self.assert_round_trip(controller)

    def test_what_was_stored_is_found_after_a_restart_by_either_interface(self):
        with self.controller(interface_v1=1) as controller:
            tokens = self.tokens(PAGES)
            _, content = self.backup(controller, tokens)
        with self.controller(interface_v1=0) as controller:
            self.assertEqual(self.prefetch(controller, tokens), (len(tokens), len(tokens), content))

    def test_detach_and_attach_while_it_runs(self):
        with self.controller() as controller:
            self.assert_round_trip(controller)
            controller.detach_storage_backend()
            self.assertFalse(controller.enable_storage)
            controller.attach_storage_backend("dynamic", TOKENS, "org/model", self.extra())
            tokens = self.tokens(PAGES)
            self.assertEqual(self.prefetch(controller, tokens)[:2], (len(tokens), len(tokens)))
            with self.assertRaises(RuntimeError):
                controller.attach_storage_backend("dynamic", TOKENS, "org/model", self.extra())

    def test_a_wrong_parameter_ends_the_attachment_and_the_next_one_works(self):
        with self.controller() as controller:
            controller.detach_storage_backend()
            with self.assertRaisesRegex(ValueError, "write 'tiers'"):
                controller.attach_storage_backend("dynamic", TOKENS, "org/model", self.extra(tier=[]))
            controller.attach_storage_backend("dynamic", TOKENS, "org/model", self.extra())
            self.assert_round_trip(controller)

    def test_ranks_of_heads_and_of_latents(self):
        tokens = self.tokens(PAGES)
        for is_mla, found_by_other in ((False, 0), (True, len(tokens))):
            with self.subTest(is_mla=is_mla):
                with self.controller(is_mla=is_mla, rank=1, ranks=2) as controller:
                    self.assertEqual(controller.backup_skip, is_mla)
                with self.controller(is_mla=is_mla, rank=0, ranks=2) as controller:
                    self.backup(controller, tokens)
                with self.controller(is_mla=is_mla, rank=1, ranks=2) as controller:
                    self.assertEqual(self.prefetch(controller, tokens)[0], found_by_other)

    def test_a_damaged_page_ends_the_prefix(self):
        tokens = self.tokens(PAGES)
        with self.controller() as controller:
            self.backup(controller, tokens[: 20 * TOKENS])
            before = set(self.files())
            self.backup(controller, self.tokens(21)[: 21 * TOKENS])
        (path,) = set(self.files()) - before
        with open(path, "r+b") as file:
            file.write(b"!")
        with self.controller() as controller:
            self.backup(controller, tokens)
            found, came, _ = self.prefetch(controller, tokens)
            # The page is there for the query, and its load is a miss: the rest is computed.
            self.assertEqual((found, came), (len(tokens), 20 * TOKENS))
            self.assertEqual(self.prefetch(controller, tokens)[0], 20 * TOKENS)
            self.backup(controller, tokens)
            self.assertEqual(self.prefetch(controller, tokens)[:2], (len(tokens), len(tokens)))

    def files(self):
        return [os.path.join(at, name) for at, _, names in os.walk(self.dir) for name in names if ".kvtier" not in at.split(os.sep)]

    def test_pools_beside_the_kv_come_with_it(self):
        tokens, indexer = self.tokens(8), indexer_pool()
        with self.controller(is_mla=True) as controller:
            controller.storage_backend.register_mem_host_pool_v2(indexer, PoolName.INDEXER)
            self.backup(controller, tokens)
            hashes = cache_controller.get_storage_hash_str(tokens, None, page_size=TOKENS)
            need = PoolTransfer(PoolName.INDEXER, hit_policy=PoolHitPolicy.ALL_PAGES)
            self.assertEqual(controller.storage_backend.batch_exists_v2(hashes, [need]).kv_hit_pages, 0)
            rows = torch.arange(5 * TOKENS)
            stored = controller.storage_backend.batch_set_v2([PoolTransfer(PoolName.INDEXER, rows, keys=hashes[:5])])
            self.assertEqual(stored, {PoolName.INDEXER: [True] * 5})
            found = controller.storage_backend.batch_exists_v2(hashes, [need])
            self.assertEqual((found.kv_hit_pages, found.restorable_prefix_pages), (5, [1, 2, 3, 4, 5]))


if __name__ == "__main__":
    unittest.main()
