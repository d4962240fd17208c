"""vLLM's ``TieringOffloadingSpec`` for a machine without a GPU, whose "GPU" is host memory: vLLM itself refuses that."""

import ctypes
import time

import numpy as np
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.gpu_worker import compute_sub_block_ptrs
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostWorker(OffloadingWorker):
    """Copies between vLLM's KV cache and the region, at once."""

    def __init__(self, kv_caches, blocks_per_chunk, region):
        self.region, self.blocks_per_chunk = region, blocks_per_chunk
        self.caches = [one.tensor for one in kv_caches.tensors]
        self.rows = [region.create_next_worker_view(one.page_size_bytes * blocks_per_chunk) for one in kv_caches.tensors]
        self.groups, self.ended = kv_caches.group_data_refs, []

    def _copy(self, job, cache_spec, row_spec, is_store):
        began, total, at_cache, at_row = time.monotonic(), 0, 0, 0
        for group, (size, index) in enumerate(zip(cache_spec.group_sizes, cache_spec.block_indices)):
            if size == 0:
                continue
            skip = index % self.blocks_per_chunk
            chunks = -(-(size + skip) // self.blocks_per_chunk)
            for ref in self.groups[group]:
                cache, row = np.empty(size, np.uint64), np.empty(size, np.uint64)
                compute_sub_block_ptrs(cache_spec.block_ids[at_cache : at_cache + size], 1, cache, self.caches[ref.tensor_idx])
                compute_sub_block_ptrs(
                    row_spec.block_ids[at_row : at_row + chunks],
                    self.blocks_per_chunk,
                    row,
                    self.rows[ref.tensor_idx],
                    skip_count=skip,
                )
                source, target = (cache, row) if is_store else (row, cache)
                for to, of in zip(target.tolist(), source.tolist()):
                    ctypes.memmove(to, of, ref.page_size_bytes)
                total += size * ref.page_size_bytes
            at_cache, at_row = at_cache + size, at_row + chunks
        self.ended.append(TransferResult(job, True, total, max(time.monotonic() - began, 1e-9)))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, True)

    def submit_load(self, job_id, src_spec, dst_spec, expedited=False):
        return self._copy(job_id, dst_spec, src_spec, False)

    def get_finished(self):
        ended, self.ended = self.ended, []
        return ended

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self.caches, self.rows = [], []
        self.region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
