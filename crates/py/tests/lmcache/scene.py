"""What the tests under the real LMCache share: its memory objects over one arena, its keys, and its own way from JSON to an adapter."""

import argparse
import ctypes
import json
import mmap
import os
import select
import tempfile
import time
import unittest

import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L1MemoryDesc
from lmcache.v1.distributed.l2_adapters import config as configs
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

MIB = 1 << 20
PAGE = mmap.PAGESIZE
MODEL = "meta-llama/Llama-3.1-8B"


def key(n, salt="", group=0):
    return ObjectKey(
        chunk_hash=n.to_bytes(32, "big"), model_name=MODEL, kv_rank=0x01000100, object_group_id=group, cache_salt=salt
    )


class Arena:
    """Memory like LMCache's L1: one range, and objects of it that begin at pages."""

    def __init__(self, bytes_max=64 * MIB):
        self.memory = mmap.mmap(-1, bytes_max)
        self.whole = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.size, self.at = bytes_max, 0

    def desc(self):
        return L1MemoryDesc(self.address, self.size, PAGE, self.size)

    def obj(self, size, fill=None):
        padded = -(-size // PAGE) * PAGE
        if self.at + padded > self.size:
            self.at = 0
        shape = torch.Size([size])
        meta = MemoryObjMetadata(
            shape=shape, dtype=torch.uint8, address=self.at, phy_size=padded, ref_count=1, fmt=MemoryFormat.BINARY
        )
        meta.shapes, meta.dtypes = [shape], [torch.uint8]
        raw = self.whole[self.at : self.at + padded]
        self.at += padded
        obj = TensorMemoryObj(raw, meta, None)
        if fill is not None:
            obj.byte_array.cast("B")[:] = content(fill, size)
        return obj


def content(n, size):
    """Bytes that differ from chunk to chunk and from page to page."""
    page = bytes((n + at) % 251 for at in range(PAGE))
    numbered = b"".join(n.to_bytes(8, "little") + at.to_bytes(8, "little") + page[16:] for at in range(-(-size // PAGE)))
    return numbered[:size]


def adapter(spec, arena=None):
    """As `lmcache server --l2-adapter JSON` makes it."""
    arguments = argparse.Namespace(l2_adapter=[json.dumps(spec)])
    [config] = configs.parse_args_to_l2_adapters_config(arguments).adapters
    return create_l2_adapter(config, l1_memory_desc=arena.desc() if arena else None)


class Case(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # a tier that is closed, not dropped, may still tidy
        self.addCleanup(place.cleanup)
        self.dir = place.name
        self.arena = Arena()

    def end(self, fd, ask, seconds=300):
        """Waits as LMCache's controllers do: polls the descriptor, clears it, asks."""
        poll, limit = select.poll(), time.monotonic() + seconds
        poll.register(fd, select.POLLIN)
        while time.monotonic() < limit:
            if poll.poll(500):
                try:
                    os.eventfd_read(fd)
                except BlockingIOError:
                    pass
            answer = ask()
            if answer is not None:
                return answer
        self.fail("no end came")

    def store(self, a, keys, objs):
        task = a.submit_store_task(keys, objs)
        return self.end(a.get_store_event_fd(), lambda: a.pop_completed_store_tasks().get(task))

    def lookup(self, a, keys):
        task = a.submit_lookup_and_lock_task(keys, {})
        return self.bits(self.end(a.get_lookup_and_lock_event_fd(), lambda: a.query_lookup_and_lock_result(task)), keys)

    def load(self, a, keys, objs):
        task = a.submit_load_task(keys, objs)
        return self.bits(self.end(a.get_load_event_fd(), lambda: a.query_load_result(task)), keys)

    def bits(self, bitmap, keys):
        return [bool(bitmap.test(at)) for at in range(len(keys))]
