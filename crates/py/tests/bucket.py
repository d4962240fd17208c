"""The S3 server of the Rust tests as a process of its own, and the spec of a tier in its bucket."""

import os
import subprocess
import unittest

KEYS = {"aws_access_key_id": "AKIDTEST", "aws_secret_access_key": "secret/test+key"}
# What a tier asks in the background, about itself and the bucket.
BACKGROUND = ("/.kvtier", "%2F.kvtier", "?versioning", "?object-lock", "?lifecycle", "uploads", "list-type")


class Server:
    def __init__(self, bucket="bucket", port=0):
        program = os.environ.get("KVTIER_S3_SERVER")
        if not program:
            raise unittest.SkipTest("KVTIER_S3_SERVER names no program: run `cargo xtask ci --only python`")
        self.bucket = bucket
        command = [program, "--bucket", bucket, "--port", str(port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said = self.process.stdout.readline()
        assert ":" in said, f"the server does not start: {said!r}"
        self.port = int(said.rsplit(":", 1)[1])

    def spec(self, **more):
        endpoint = {"s3_endpoint": f"http://localhost:{self.port}", "bucket": self.bucket}
        return {"type": "s3", **endpoint, "s3_region": "us-east-1", **KEYS, **more}

    def ask(self, command):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return [line.rstrip("\n") for line in iter(self.process.stdout.readline, "\n")]

    def keys(self):
        """The names of all chunks."""
        return [name for name in self.ask("keys") if not name.startswith(".kvtier/")]

    def requests(self):
        """How often each method was used since the last time, for chunks."""
        counts = {}
        for line in self.ask("requests"):
            method, target, _ = line.split(" ")
            if not any(word in target for word in BACKGROUND):
                counts[method] = counts.get(method, 0) + 1
        return counts

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
