"""What all rivals' drivers share: memory, the clock, and the line of JSON they print.

A driver is called as `driver.py DIR SIZE INFLIGHT CHUNKS KIND` and prints a list of samples.
"""

import ctypes
import json
import mmap
import resource
import sys
import time

MADV_HUGEPAGE = 14
PAGE = 4096


def arguments():
    directory, size, inflight, chunks, kind = sys.argv[1:6]
    return directory, int(size), int(inflight), int(chunks), kind


def arena(size, slots):
    """Slots of `size` bytes in huge pages, touched, with content that differs from page to page."""
    length = size * slots
    # Shared memory, which is what mmap gives unasked, has no huge pages on most machines.
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(MADV_HUGEPAGE)
    page = bytes(range(256)) * (PAGE // 256)
    for at in range(0, length, PAGE):
        memory[at : at + PAGE] = page
        memory[at : at + 8] = at.to_bytes(8, "little")
    return memory


def address(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Stage:
    """Times what happens between `with` and its end, and keeps the latency of every chunk that is reported."""

    def __init__(self, op, how, size, chunks):
        self.op, self.how, self.size, self.chunks, self.seconds = op, how, size, chunks, []

    def __enter__(self):
        self.cpu, self.began = cpu_seconds(), time.monotonic()
        return self

    def __exit__(self, *_):
        self.wall, self.cpu = time.monotonic() - self.began, cpu_seconds() - self.cpu

    def sample(self):
        total, ordered = self.size * self.chunks, sorted(self.seconds)
        quantile = lambda q: ordered[min(int(len(ordered) * q), len(ordered) - 1)] * 1e3 if ordered else None
        return {
            "op": self.op,
            "how": self.how,
            "mb_per_s": total / 1e6 / self.wall,
            "cpu_s_per_gb": self.cpu / (total / 1e9),
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
        }


def batches(chunks, inflight):
    """The numbers of the chunks, `inflight` at a time."""
    return [range(at, min(at + inflight, chunks)) for at in range(0, chunks, inflight)]


def report(stages):
    print(json.dumps([stage.sample() for stage in stages]))
