"""Submits batches over registered memory, as an inference engine does, and collects their ends by polling and in an event loop.

python examples/python/batches.py [DIRECTORY]
"""

import asyncio
import hashlib
import mmap
import sys
import tempfile
from typing import Any

from kvtier import Key, Queue

ROW = 256 * 1024
ROWS = 16


async def load(queue: Queue, keys: list[Key], ranges: list[Any]) -> int:
    """Loads in an event loop; returns the number of chunks that were there."""
    end = await queue.completed(queue.load(keys, ranges))
    return sum(length is not None for length in end.results)


def main(directory: str) -> None:
    memory = mmap.mmap(-1, ROWS * ROW)
    keys = [Key("org/model", hashlib.sha256(bytes([n])).digest()) for n in range(8)]
    with Queue(tiers=[{"type": "file", "path": directory, "bytes": "64MiB", "free_min": 0}]) as queue:
        region = queue.register(memory)
        for n in range(8):
            memory[n * ROW : (n + 1) * ROW] = bytes([n]) * ROW
        # Two jobs in flight at once; the engine goes on and polls in its next steps.
        jobs = {queue.save(keys[:4], region.rows(range(4), ROW)), queue.save(keys[4:], region.rows(range(4, 8), ROW))}
        while jobs:
            for end in queue.wait(timeout=60):
                print("job", end.batch, "stored", end.results.count(1), "chunks")
                jobs.remove(end.batch)
        assert asyncio.run(load(queue, keys, region.rows(range(8, 16), ROW))) == 8
        assert memory[8 * ROW :] == memory[: 8 * ROW]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as place:
            main(place)
