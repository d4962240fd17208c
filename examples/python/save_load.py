"""Saves chunks of a KV cache to a directory and loads them again, waiting and in an event loop.

python examples/python/save_load.py [DIRECTORY]
"""

import asyncio
import hashlib
import sys
import tempfile
from typing import Any

from kvtier import Key, Store, errors

CHUNK = 1 << 20


def chain(count: int) -> list[Key]:
    """The hash of a chunk names all tokens up to its end."""
    keys, digest = [], b""
    for n in range(count):
        digest = hashlib.blake2b(digest + n.to_bytes(4, "big"), digest_size=32).digest()
        keys.append(Key("org/model", digest))
    return keys


async def prefetch(store: Store, keys: list[Key]) -> int:
    """Loads the longest run of chunks that is there."""
    found = await store.alookup(keys, prefix=True)
    run = sum(length is not None for length in found)
    buffers = [bytearray(CHUNK) for _ in range(run)]
    loaded = await store.aload(keys[:run], buffers, prefetch=True)
    return sum(length is not None for length in loaded)


def main(directory: str) -> None:
    tiers: list[dict[str, Any]] = [
        {"type": "host", "bytes": "16MiB"},
        {"type": "file", "path": directory, "bytes": "64MiB", "free_min": 0},
    ]
    keys = chain(8)
    with Store(tiers=tiers) as store:
        store.save(keys[:6], [bytes([n]) * CHUNK for n in range(6)])
        into = bytearray(CHUNK)
        assert store.load([keys[5]], [into]) == [CHUNK] and into == bytes([5]) * CHUNK
        assert asyncio.run(prefetch(store, keys)) == 6
        try:
            store.lookup(["not a key"])
        except errors.Invalid as e:
            print("refused:", e)
        print(store.usage())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as place:
            main(place)
