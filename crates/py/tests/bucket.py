"""The S3 server of the Rust tests as a process of its own, and the spec of a tier in its bucket."""

import datetime
import hashlib
import hmac
import http.client
import os
import subprocess
import unittest
import urllib.parse

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

    def put(self, name, data):
        """An object as another program writes it."""
        now, region = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ"), "us-east-1"
        path = urllib.parse.quote(f"/{self.bucket}/{name}")
        headers = {
            "host": f"localhost:{self.port}",
            "x-amz-content-sha256": hashlib.sha256(data).hexdigest(),
            "x-amz-date": now,
        }
        names, scope = ";".join(headers), f"{now[:8]}/{region}/s3/aws4_request"
        lines = ["PUT", path, "", *(f"{header}:{value}" for header, value in headers.items()), "", names]
        request = "\n".join([*lines, headers["x-amz-content-sha256"]])
        signed = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()])
        key = f"AWS4{KEYS['aws_secret_access_key']}".encode()
        for word in [*scope.split("/"), signed]:
            key = hmac.new(key, word.encode(), hashlib.sha256).digest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={KEYS['aws_access_key_id']}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        )
        connection = http.client.HTTPConnection("localhost", self.port, timeout=60)
        connection.request("PUT", path, data, headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        connection.close()

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
