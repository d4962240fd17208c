"""LMCache's own S3 L2 adapter (aws-crt), driven through the interface its storage manager uses: a window of single-chunk tasks. Takes the
arguments of the Rust clients' program and prints one JSON object."""

import argparse
import json
import os
import resource
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import measure
import rivals
import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import config as configs
from lmcache.v1.distributed.l2_adapters import create_l2_adapter_from_registry


def adapter_of(args):
    scheme, authority = args.endpoint.split("://")
    spec = {
        "type": "s3",
        "s3_endpoint": authority,
        "s3_region": "us-east-1",
        "disable_tls": scheme == "http",
        "aws_access_key_id": "AKIDBENCH",
        "aws_secret_access_key": "bench-secret",
    }
    return create_l2_adapter_from_registry(configs.get_l2_adapter_config_class("s3").from_dict(spec))


def key(args, n):
    """The server learns from the name how long the object is."""
    return ObjectKey(chunk_hash=n.to_bytes(32, "big"), model_name=f"{args.size}/bench", kv_rank=0)


def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


class World:
    def __init__(self, args):
        self.args = args
        memory = measure.arena(args.size, args.concurrency)
        self.slots = rivals.slots_of(memory, args.size, args.concurrency)
        self.resident_kib = status("VmRSS:")
        self.adapter = adapter_of(args)

    def stored(self, _):
        results = self.adapter.pop_completed_store_tasks()
        assert all(result.is_successful() for result in results.values()), "a store failed"
        return list(results)

    def loaded(self, running):
        results = {task: self.adapter.query_load_result(task) for task in running}
        done = {task: bits for task, bits in results.items() if bits is not None}
        assert all(bits.test(0) for bits in done.values()), "a load failed"
        return list(done)

    def move(self, chunks):
        args, adapter = self.args, self.adapter
        stage = measure.Stage(args.op, "lmcache", args.size, chunks)
        submit, fd, finished = {
            "put": (adapter.submit_store_task, adapter.get_store_event_fd(), self.stored),
            "get": (adapter.submit_load_task, adapter.get_load_event_fd(), self.loaded),
        }[args.op]
        to_ours = lambda keys, slots: submit([key(args, n) for n in keys], slots)
        with stage:
            rivals.window(stage, self.slots, to_ours, fd, finished)
        return stage


def delete(args):
    """All in one call, as its eviction does."""
    adapter = adapter_of(args)
    keys = [key(args, n) for n in range(args.count)]
    adapter.delete(keys[: args.concurrency])
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    adapter.delete(keys)
    used, seconds = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
    each = seconds * 1e3 / args.count
    found = {
        "ops": args.count,
        "seconds": seconds,
        "user_s": used.ru_utime - before.ru_utime,
        "system_s": used.ru_stime - before.ru_stime,
        "p50_ms": each,
        "p99_ms": each,
        "rss_over_memory_mib": used.ru_maxrss / 1024,
    }
    print(json.dumps(found), flush=True)
    os._exit(0)


def main(args):
    if args.op == "delete":
        delete(args)
    rivals.key = lambda n: n
    world = World(args)
    # Connections first, and a look whether the bytes are right: all objects begin with the same bytes.
    world.move(args.concurrency)
    if args.op == "get":
        whole = [slot.raw_data for slot in world.slots]
        assert all(torch.equal(whole[0], other) for other in whole[1:]), "wrong bytes came back"
    before = resource.getrusage(resource.RUSAGE_SELF)
    stage = world.move(args.count)
    used = resource.getrusage(resource.RUSAGE_SELF)
    stage.seconds.sort()
    at = lambda share: stage.seconds[round((len(stage.seconds) - 1) * share)] * 1e3
    found = {
        "ops": len(stage.seconds),
        "seconds": stage.wall,
        "user_s": used.ru_utime - before.ru_utime,
        "system_s": used.ru_stime - before.ru_stime,
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "rss_over_memory_mib": used.ru_maxrss / 1024 - args.concurrency * args.size / 2**20,
        "grown_mib": (used.ru_maxrss - world.resident_kib) / 1024,
        "threads": status("Threads:"),
    }
    print(json.dumps(found), flush=True)
    # Its threads take their time to end, and are not measured.
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--op", "--endpoint"):
        parser.add_argument(name)
    for name in ("--size", "--concurrency", "--count"):
        parser.add_argument(name, type=int)
    main(parser.parse_args())
