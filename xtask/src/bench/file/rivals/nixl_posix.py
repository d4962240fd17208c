"""NIXL's POSIX plugin: transfers between registered memory and registered files, a window of single-chunk requests."""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import measure
from nixl_cu12 import _api as nixl


def main():
    directory, size, inflight, chunks, kind = measure.arguments()
    memory = measure.arena(size, inflight)
    address = measure.address(memory)
    agent = nixl.nixl_agent("bench", nixl.nixl_agent_config(backends=[]))
    agent.create_backend("POSIX", {"use_uring": "true"} if kind == "uring" else {"use_aio": "true"})
    ram = agent.register_memory([(address, size * inflight, 0, "")], "DRAM", backends=["POSIX"])

    stages = []
    for op, flags in [("put", os.O_WRONLY | os.O_CREAT), ("get", os.O_RDONLY)]:
        stage = measure.Stage(op, kind, size, chunks)
        with stage:
            move(agent, stage, (directory, flags | os.O_DIRECT), (address, inflight))
        stages.append(stage)
    agent.deregister_memory(ram)
    measure.report(stages)


def move(agent, stage, file, memory):
    """Keeps `inflight` requests under way, each with a file of its own, opened and registered as its chunk comes."""
    (directory, flags), (address, inflight) = file, memory
    free, running, following = list(range(inflight)), [], 0
    while following < stage.chunks or running:
        while free and following < stage.chunks:
            slot, began = free.pop(), time.monotonic()
            fd = os.open(os.path.join(directory, str(following)), flags, 0o644)
            entry = agent.register_memory([(0, stage.size, fd, "")], "FILE", backends=["POSIX"])
            here = agent.get_xfer_descs([(address + slot * stage.size, stage.size, 0)], "DRAM")
            there = agent.get_xfer_descs([(0, stage.size, fd)], "FILE")
            operation = "WRITE" if stage.op == "put" else "READ"
            request = agent.initialize_xfer(operation, here, there, "bench", b"", ["POSIX"])
            state = agent.transfer(request)
            running.append((request, entry, fd, slot, began, state))
            following += 1
        still = []
        for request, entry, fd, slot, began, state in running:
            state = agent.check_xfer_state(request) if state == "PROC" else state
            if state == "PROC":
                still.append((request, entry, fd, slot, began, state))
                continue
            assert state == "DONE", f"a transfer ended as {state}"
            agent.release_xfer_handle(request)
            agent.deregister_memory(entry)
            os.close(fd)
            stage.seconds.append(time.monotonic() - began)
            free.append(slot)
        running = still
        time.sleep(0.0002)


main()
