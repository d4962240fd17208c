"""boto3 with a thread for each request in flight, one client for all: put_object, get_object into memory that was there before, head_object.
Bodies are not signed and have no checksums, as for all clients here. Prints one JSON object."""

import argparse
import concurrent.futures
import itertools
import json
import os
import resource
import threading
import time

import boto3
from botocore.config import Config

BUCKET = "bench"


def client(args):
    config = Config(
        max_pool_connections=args.concurrency,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path", "payload_signing_enabled": False},
    )
    return boto3.client(
        "s3",
        endpoint_url=args.endpoint,
        region_name="us-east-1",
        aws_access_key_id="AKIDBENCH",
        aws_secret_access_key="bench-secret",
        verify=os.environ["SSL_CERT_FILE"],
        config=config,
    )


def operation(s3, args, memory):
    def put(key):
        s3.put_object(Bucket=BUCKET, Key=key, Body=memory)

    def get(key):
        body, at = s3.get_object(Bucket=BUCKET, Key=key)["Body"], 0
        view = memoryview(memory)
        while at < len(view):
            read = body.readinto(view[at:])
            assert read, "the body is short"
            at += read

    def head(key):
        assert s3.head_object(Bucket=BUCKET, Key=key)["ContentLength"] == args.size, "wrong length"

    return {"put": put, "get": get, "head": head}[args.op]


def main(args):
    s3 = client(args)
    barrier, numbers, taken = threading.Barrier(args.concurrency + 1), itertools.count(), []

    def work():
        memory = os.urandom(args.size) if args.op == "put" else bytearray(args.size)
        one = operation(s3, args, memory)
        # Connections first.
        one(f"{args.size}/{0:08}")
        barrier.wait()
        barrier.wait()
        while (n := next(numbers)) < args.count:
            began = time.perf_counter()
            one(f"{args.size}/{n:08}")
            taken.append((time.perf_counter() - began) * 1e3)

    with concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool:
        workers = [pool.submit(work) for _ in range(args.concurrency)]
        barrier.wait()
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        barrier.wait()
        for worker in workers:
            worker.result()
    seconds, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    taken.sort()
    result = {
        "ops": len(taken),
        "seconds": seconds,
        "user_s": used.ru_utime - before.ru_utime,
        "system_s": used.ru_stime - before.ru_stime,
        "p50_ms": taken[round((len(taken) - 1) * 0.5)],
        "p99_ms": taken[round((len(taken) - 1) * 0.99)],
        "rss_over_memory_mib": used.ru_maxrss / 1024 - args.concurrency * args.size / 2**20,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--op", "--endpoint"):
        parser.add_argument(name)
    for name in ("--size", "--concurrency", "--count"):
        parser.add_argument(name, type=int)
    main(parser.parse_args())
