"""Measures kvikio and torch on this machine: rows for the table of `gpu_check`. Arguments: a directory, the number of chunks, bytes of a chunk,
and the number of rounds, of which the medians are printed. A library that is missing is listed with the reason."""

import os
import resource
import statistics
import sys
import time

DIRECTORY, (CHUNKS, BYTES, ROUNDS) = sys.argv[1], map(int, sys.argv[2:5])
FILE = os.path.join(DIRECTORY, f"gpu-check-{os.getpid()}.bin")


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def drop_cache():
    with open(FILE, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_once(out, into):
    """MB/s from the GPU and to it, and CPU seconds per GB to it."""
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
    """The cells of a row: medians over all rounds."""
    cells = zip(*(measure_once(out, into) for _ in range(ROUNDS)))
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


for name, row in [("kvikio", kvikio_row), ("torch", torch_row)]:
    try:
        cells = row()
    except Exception as e:
        cells = f"- | - | - | not measured: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
    print(f"| {name} | {cells} |", flush=True)
    if os.path.exists(FILE):
        os.unlink(FILE)
