"""SGLang's own prefix tree (`UnifiedRadixCache`) with its controller on CPU tensors, and the backend below it: insert, back up, evict, restart, prefetch and
load back, byte for byte.

The tree, its evictions, the controller with its threads, and the pools are the real ones. Only the kernels that copy pages between a GPU and the host have
stand-ins in torch, since they exist for GPUs alone.
"""

import json
import os
import shutil
import tempfile
import time
import unittest
from array import array
from unittest import mock

if "KVTIER_SGLANG_ENGINE" not in os.environ:
    raise unittest.SkipTest("needs SGLang and torch: run `cargo xtask nightly --only sglang`")

import torch
import torch.distributed
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, EvictParams, InsertParams
from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler
from sglang.srt.mem_cache.pool_host import mha
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.test.kits.unified_radix_cache import fixtures
from sglang.test.kits.unified_radix_cache.config import CacheConfig

TOKENS, LAYERS, ROWS = 4, 3, 256
WAIT_S = 60


def copy_to_host(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    """The kernel that copies all layers to pages of `page_first_direct`."""
    layers = len(src_ptrs) // len(dst_ptrs)
    for part, host in enumerate(dst_ptrs):
        for layer, device in enumerate(src_ptrs[part * layers : (part + 1) * layers]):
            host[dst_indices // page_size, layer, dst_indices % page_size] = device[src_indices]


def copy_to_device(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
    """The kernel that copies one layer back."""
    for host, device in zip(src_ptrs, dst_ptrs):
        device[dst_indices] = host[src_indices // page_size, layer_id, src_indices % page_size]


class Tree:
    """One engine: a device pool, the tree over it, and the backend over a directory."""

    def __init__(self, test, directory):
        self.test = test
        config = CacheConfig(page_size=TOKENS, num_layers=LAYERS, kv_size=ROWS)
        with mock.patch.object(fixtures, "get_device", lambda: "cpu"):
            self.cache, self.allocator, _ = fixtures.build_fixture(config)
        own = {"backend_name": "kvtier", "module_path": "kvtier.sglang", "class_name": "KvtierHiCache", "interface_v1": 1}
        tier = {"type": "file", "path": directory, "bytes": "256MiB", "free_min": 0}
        arguments = ServerArgs(
            model_path="dummy",
            page_size=TOKENS,
            hicache_io_backend="direct",
            hicache_mem_layout="page_first_direct",
            hicache_write_policy="write_through",
            hicache_storage_backend="dynamic",
            hicache_storage_backend_extra_config=json.dumps({**own, "prefetch_threshold": 1, "tiers": [tier]}),
            hicache_storage_prefetch_policy="wait_complete",
        )
        # The model's configuration, which is not there, has this.
        arguments._mamba_cache_chunk_size = 64
        set_global_server_args_for_scheduler(arguments)
        self.cache.init_hicache(arguments, self.cache.cache_init_params)
        fixtures.drop_hicache_atexit_pin(self.cache)
        self.cache.load_back_threshold = 0
        # Nodes are backed up by the test.
        self.cache.write_through_threshold = 1 << 30
        controller = self.cache.cache_controller
        controller.prefetch_capacity_limit = max(controller.prefetch_capacity_limit, controller.mem_pool_host.size)

    def close(self):
        self.cache.cache_controller.detach_storage_backend()

    def eventually(self, check):
        until = time.monotonic() + WAIT_S
        while not check():
            self.test.assertLess(time.monotonic(), until, "never so")
            time.sleep(0.01)

    def match(self, tokens):
        return fixtures.match_prefix(self.cache, tokens)

    def nodes(self, node):
        """The nodes from the root to this one."""
        found = []
        while node != self.cache.root_node_handle():
            found.append(node)
            node = fixtures.node_parent(self.cache, node)
        return found[::-1]

    def insert(self, tokens):
        """What a request leaves: pages in the device pool, and nodes in the tree."""
        known = self.match(tokens).device_prefix_len
        fresh = self.allocator.alloc(len(tokens) - known).to(torch.int64)
        pool = self.allocator.get_kvcache()
        for layer in range(LAYERS):
            for at, buffer in enumerate((pool.get_key_buffer(layer), pool.get_value_buffer(layer))):
                # Content that differs by token, layer, and keys or values.
                words = torch.tensor(tokens[known:]).view(-1, 1, 1) * 7 + layer * 2 + at
                buffer[fresh] = (words + torch.arange(buffer.shape[1] * buffer.shape[2]).view(1, *buffer.shape[1:]) % 61).to(buffer.dtype)
        value = torch.cat([self.cache.path_device_indices(self.match(tokens).last_device_node), fresh])
        self.cache.insert(InsertParams(key=RadixKey(array("q", tokens)), value=value))

    def content(self, tokens):
        """The bytes of the pages of this prefix in the device pool."""
        rows = self.cache.path_device_indices(self.match(tokens).last_device_node)
        pool = self.allocator.get_kvcache()
        parts = [buffer[rows] for layer in range(LAYERS) for buffer in (pool.get_key_buffer(layer), pool.get_value_buffer(layer))]
        return torch.stack(parts).view(torch.uint8).numpy().tobytes()

    def back_up(self, tokens):
        """To the host, and from there to the storage."""
        for node in self.nodes(self.match(tokens).last_device_node):
            if not self.cache.tree_core.is_backuped(node):
                fixtures.write_backup(self.cache, node, write_back=True)
                self.cache.writing_check(write_back=True)
            self.cache.write_backup_storage(node)
        self.eventually(lambda: self.cache.drain_storage_control_queues() or not self.cache.ongoing_backup)

    def prefetch(self, tokens):
        """What the scheduler does for a request that waits: pages come from the storage to the host, and then to the device."""
        request = CacheRequestHandle(f"request {time.monotonic_ns()}", 0)
        rest, node = array("q", tokens[len(tokens) - self.missing(tokens) :]), self.match(tokens).last_host_node
        # The hash of a page is chained to that of the page before it.
        last = None if node == self.cache.root_node_handle() else self.cache.tree_core.get_hash_values(node)[-1]
        self.cache.prefetch_from_storage(request, node, rest, last, None)
        self.eventually(lambda: self.cache.check_hicache_events() or self.cache.check_prefetch_progress(request))

    def missing(self, tokens):
        found = self.match(tokens)
        return len(tokens) - found.device_prefix_len - found.host_hit_length

    def load_back(self, tokens):
        self.cache.load_back(self.match(tokens).last_host_node)
        self.cache.ready_to_load_host_cache()
        self.eventually(lambda: self.cache.loading_check() or not self.cache.ongoing_load_back)


class PrefixTree(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        cls.addClassCleanup(torch.distributed.destroy_process_group)

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        host_class = hybrid_pool_assembler.get_mha_host_pool_cls

        def unpinned(pool):
            return lambda *args, **named: host_class(pool)(*args, **{**named, "pin_memory": False})

        place = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, dp_size=1)
        attention = {f"attn_{name}_{what}": int(what == "size") for name in ("tp", "dp", "dcp", "cp") for what in ("rank", "size")}
        stand_ins = dict(transfer_kv_all_layer_direct_lf_pf=copy_to_host, transfer_kv_per_layer_direct_pf_lf=copy_to_device)
        for patch in (
            mock.patch.object(hybrid_pool_assembler, "get_mha_host_pool_cls", unpinned),
            mock.patch.multiple(mha, create=True, **stand_ins),
            get_parallel().override(**place, **attention),
        ):
            patch.__enter__()
            self.addCleanup(patch.__exit__, None, None, None)

    def open(self):
        tree = Tree(self, self.dir)
        self.addCleanup(tree.close)
        return tree

    def test_a_prefix_comes_back_after_a_restart(self):
        first, tokens = self.open(), list(range(100, 100 + 20 * TOKENS))
        branch = tokens[: 8 * TOKENS] + list(range(900, 900 + 5 * TOKENS))
        for one in (tokens, branch):
            first.insert(one)
            first.back_up(one)
        content = {len(one): first.content(one) for one in (tokens, branch)}
        first.close()
        second = self.open()
        for one in (tokens, branch):
            self.assertGreater(second.missing(one), 0)
            second.prefetch(one + list(range(2000, 2000 + 3 * TOKENS)))
            self.assertEqual(second.missing(one), 0)
            second.load_back(one)
            self.assertEqual(second.match(one).device_prefix_len, len(one))
            self.assertEqual(second.content(one), content[len(one)])

    def test_what_the_host_evicted_comes_from_the_storage(self):
        tree, tokens = self.open(), list(range(100, 100 + 16 * TOKENS))
        tree.insert(tokens)
        tree.back_up(tokens)
        content = tree.content(tokens)
        tree.cache.evict(EvictParams(num_tokens=len(tokens)))
        self.assertEqual((tree.match(tokens).device_prefix_len, tree.match(tokens).host_hit_length), (0, len(tokens)))
        tree.cache.evict_host(len(tokens))
        self.assertEqual(tree.missing(tokens), len(tokens))
        for layer in range(LAYERS):
            tree.allocator.get_kvcache().get_key_buffer(layer).zero_()
        tree.cache.cache_controller.mem_pool_host.entries[0].host_pool.kv_buffer.zero_()
        tree.prefetch(tokens)
        tree.load_back(tokens)
        self.assertEqual(tree.content(tokens), content)

    def test_a_damaged_page_ends_the_prefix_and_the_rest_is_right(self):
        first, tokens = self.open(), list(range(100, 100 + 16 * TOKENS))
        for end in (6 * TOKENS, 7 * TOKENS, 16 * TOKENS):
            before = set(self.files())
            first.insert(tokens[:end])
            first.back_up(tokens[:end])
            if end == 7 * TOKENS:
                (damaged,) = set(self.files()) - before
        content = first.content(tokens[: 6 * TOKENS])
        first.close()
        with open(damaged, "r+b") as file:
            file.write(b"!" * 64)
        second = self.open()
        second.prefetch(tokens)
        self.assertEqual(second.missing(tokens), 10 * TOKENS)
        second.load_back(tokens)
        self.assertEqual(second.content(tokens), content)

    def files(self):
        return [os.path.join(at, name) for at, _, names in os.walk(self.dir) for name in names if ".kvtier" not in at.split(os.sep)]


if __name__ == "__main__":
    unittest.main()
