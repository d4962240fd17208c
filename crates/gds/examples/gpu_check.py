"""What Python programs on this machine get with kvikio and with torch: rows for the table of `gpu_check`. Arguments: a directory, chunks, bytes of
a chunk, turns, of which the medians count. What is not installed is named with the reason."""

import os
import resource
import statistics
import sys
import time

DIRECTORY, (CHUNKS, BYTES, TURNS) = sys.argv[1], map(int, sys.argv[2:5])
FILE = os.path.join(DIRECTORY, f"gpu-check-{os.getpid()}.bin")


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def drop_cache():
    with open(FILE, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def turn(out, into):
    """MB/s out of the GPU and into it, and seconds of CPU for each GB into it."""
    begun = time.monotonic()
    out()
    out_s = time.monotonic() - begun
    drop_cache()
    begun, cpu = time.monotonic(), cpu_seconds()
    into()
    mb = CHUNKS * BYTES / 1e6
    in_s, cpu = time.monotonic() - begun, cpu_seconds() - cpu
    return mb / out_s, mb / in_s, cpu / (mb / 1e3)


def measured(out, into):
    """The cells of a row."""
    cells = zip(*(turn(out, into) for _ in range(TURNS)))
    out_mb, in_mb, cpu = (statistics.median(cell) for cell in cells)
    return f"{out_mb:.0f} | {in_mb:.0f} | {cpu:.3f}"


def kvikio_row():
    import cupy
    import kvikio
    import kvikio.defaults

    memory = cupy.zeros(BYTES, dtype=cupy.uint8)

    def each(mode, method):
        with kvikio.CuFile(FILE, mode) as file:
            for n in range(CHUNKS):
                moved = getattr(file, method)(memory, BYTES, n * BYTES).get()
                assert moved == BYTES, f"{moved} of {BYTES} bytes"

    rates = measured(lambda: each("w", "pwrite"), lambda: each("r", "pread"))
    compat = getattr(kvikio.defaults, "compat_mode", lambda: "unknown")()
    return f"{rates} | kvikio {kvikio.__version__}, compatibility mode: {compat}"


def torch_row():
    import torch

    chunk = torch.zeros(BYTES, dtype=torch.uint8, device="cuda")

    def out():
        with open(FILE, "wb") as file:
            for _ in range(CHUNKS):
                file.write(memoryview(chunk.cpu().numpy()))

    def into():
        host = torch.empty(BYTES, dtype=torch.uint8, pin_memory=True)
        with open(FILE, "rb", buffering=0) as file:
            for _ in range(CHUNKS):
                moved = file.readinto(memoryview(host.numpy()))
                assert moved == BYTES, f"{moved} of {BYTES} bytes"
                chunk.copy_(host)
        torch.cuda.synchronize()

    return f"{measured(out, into)} | torch {torch.__version__}: readinto pinned memory, and a copy"


for way, row in [("kvikio", kvikio_row), ("torch", torch_row)]:
    try:
        said = row()
    except Exception as e:
        said = f"- | - | - | not measured: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
    print(f"| {way} | {said} |", flush=True)
    if os.path.exists(FILE):
        os.unlink(FILE)
