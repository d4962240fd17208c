"""awscrt as LMCache's S3 connector uses it: one client with its defaults and 64 I/O threads, requests awaited by asyncio, bodies copied
from the callback into memory that was there before, uploads read from it through a stream. Prints one JSON object."""

import argparse
import asyncio
import ctypes
import json
import mmap
import os
import resource
import ssl
import time
import urllib.request

from awscrt import auth, io, s3
from awscrt.http import HttpHeaders, HttpRequest

REGION = "us-east-1"
IO_THREADS = 64
EDGE = 16


class Stream:
    """A body that is read without a copy here."""

    def __init__(self, view):
        self.view, self.at = view, 0

    def read(self, size=None):
        end = len(self.view) if size is None else min(self.at + max(size, 0), len(self.view))
        piece, self.at = self.view[self.at : end], end
        return piece

    def seek(self, offset, whence=0):
        self.at = offset + {0: 0, 1: self.at, 2: len(self.view)}[whence]
        return self.at


class Client:
    def __init__(self, args):
        self.args = args
        scheme, self.authority = args.endpoint.split("://")
        group = io.EventLoopGroup(IO_THREADS)
        bootstrap = io.ClientBootstrap(group, io.DefaultHostResolver(group))
        self.who = auth.AwsCredentialsProvider.new_static("AKIDBENCH", "bench-secret")
        tls, mode = None, s3.S3RequestTlsMode.DISABLED
        if scheme == "https":
            options = io.TlsContextOptions()
            options.override_default_trust_store_from_path(None, os.environ["SSL_CERT_FILE"])
            tls, mode = io.TlsConnectionOptions(io.ClientTlsContext(options)), s3.S3RequestTlsMode.ENABLED
        self.client = s3.S3Client(bootstrap=bootstrap, region=REGION, tls_connection_options=tls, tls_mode=mode)

    async def ask(self, kind, method, key, body=None, headers=(), **more):
        fields = HttpHeaders([("Host", self.authority), *headers])
        request = s3.S3Request(
            client=self.client,
            type=kind,
            request=HttpRequest(method, f"/bench/{key}", fields, body_stream=body),
            credential_provider=self.who,
            region=REGION,
            **more,
        )
        await asyncio.wrap_future(request.finished_future)

    async def get(self, key, memory):
        address = ctypes.addressof(memory)

        def on_body(chunk, offset, **_):
            ctypes.memmove(address + offset, chunk, len(chunk))

        await self.ask(s3.S3RequestType.GET_OBJECT, "GET", key, on_body=on_body)

    async def put(self, key, memory):
        view = memoryview(memory).cast("B")
        headers = [("Content-Length", str(len(view))), ("Content-Type", "application/octet-stream")]
        await self.ask(s3.S3RequestType.PUT_OBJECT, "PUT", key, Stream(view), headers)

    async def head(self, key, _):
        found = []

        def on_headers(status_code, headers, **_):
            found.extend(int(value) for name, value in headers if name.lower() == "content-length")

        await self.ask(s3.S3RequestType.DEFAULT, "HEAD", key, operation_name="HeadObject", on_headers=on_headers)
        assert found == [self.args.size], "wrong length"


def object_bytes(args):
    trust = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
    with urllib.request.urlopen(f"{args.endpoint}/bench/{args.size}/00000000", context=trust) as answer:
        return answer.read()


async def work(client, args, memory, right, ready, numbers, taken):
    one = getattr(client, args.op)
    # Connections first; of the memory every byte is compared once, its ends each time.
    await one(f"{args.size}/00000000", memory)
    assert args.op != "get" or memoryview(memory).cast("B") == right, "wrong bytes came back"
    await ready()
    for n in numbers:
        if args.op == "get":
            ctypes.memset(memory, 0, EDGE)
        began = time.perf_counter()
        await one(f"{args.size}/{n:08}", memory)
        taken.append((time.perf_counter() - began) * 1e3)
        if args.op == "get":
            view = memoryview(memory).cast("B")
            assert view[:EDGE] == right[:EDGE] and view[-EDGE:] == right[-EDGE:], "wrong bytes came back"


async def main(args):
    right, client = object_bytes(args), Client(args)
    maps = [mmap.mmap(-1, args.size) for _ in range(args.concurrency)]
    for map in maps:
        map.write(right)
    memories = [(ctypes.c_char * args.size).from_buffer(map) for map in maps]
    waiting, start, clock, taken = [args.concurrency], asyncio.Event(), [], []

    async def ready():
        waiting[0] -= 1
        if waiting[0] == 0:
            clock.extend([time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)])
            start.set()
        await start.wait()

    numbers = iter(range(args.count))
    await asyncio.gather(*(work(client, args, memory, right, ready, numbers, taken) for memory in memories))
    seconds, used, before = time.perf_counter() - clock[0], resource.getrusage(resource.RUSAGE_SELF), clock[1]
    taken.sort()
    print(
        json.dumps(
            {
                "ops": len(taken),
                "seconds": seconds,
                "user_s": used.ru_utime - before.ru_utime,
                "system_s": used.ru_stime - before.ru_stime,
                "p50_ms": taken[round((len(taken) - 1) * 0.5)],
                "p99_ms": taken[round((len(taken) - 1) * 0.99)],
                "rss_over_memory_mib": used.ru_maxrss / 1024 - args.concurrency * args.size / 2**20,
            }
        ),
        flush=True,
    )
    # Its threads take their time to end, and are not measured.
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--op", "--endpoint"):
        parser.add_argument(name)
    for name in ("--size", "--concurrency", "--count"):
        parser.add_argument(name, type=int)
    asyncio.run(main(parser.parse_args()))
