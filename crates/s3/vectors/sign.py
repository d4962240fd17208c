"""Random requests signed by botocore, one JSON object a line: `python sign.py COUNT SEED`.

The clock is fixed for each; keys, queries, metadata and secrets have odd characters. `cargo xtask nightly --only botocore` runs this.
"""

import datetime
import json
import random
import sys
from types import SimpleNamespace
from urllib.parse import quote

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ODD = "/. +%?=&~!*'()é世\"#:@;,<>[]{}|\\^`$_-"
PLAIN = "abcXYZ019"


def text(rng, most, odd=ODD, least=0):
    return "".join(rng.choice(odd if rng.random() < 0.5 else PLAIN) for _ in range(rng.randint(least, most)))


def case(rng):
    express, virtual = rng.random() < 0.4, rng.random() < 0.5
    region, at = rng.choice(["us-east-1", "eu-west-3", "auto"]), rng.randint(1_000_000_000, 4_000_000_000)
    port = rng.choice(["", "", ":9000", ":443", ":8080"])
    host = ("b--use1-az4--x-s3." if virtual else "") + "s3.example.net"
    key, body = text(rng, 40, least=1), text(rng, 20).encode()
    query = {"q" + text(rng, 5): text(rng, 12) for _ in range(rng.randint(0, 3))}
    printable = "".join(map(chr, range(33, 127))) + "  "
    extra = {f"x-amz-meta-{n}": text(rng, 15, printable, 1).strip() or "v" for n in range(rng.randint(0, 3))}
    if rng.random() < 0.3:
        extra["range"] = f"bytes={rng.randint(0, 99)}-{rng.randint(100, 999)}"
    secret, token = text(rng, 30, printable, 5), text(rng, 15, "/+=", 3) if express or rng.random() < 0.4 else None
    path = ("/" if virtual else "/bucket/") + quote(key, safe="/~")
    method, unsigned = rng.choice(["GET", "PUT", "HEAD", "DELETE", "POST"]), rng.random() < 0.5

    url, params = f"https://{host}{port}{path}", query
    if query and rng.random() < 0.5:
        pairs = [f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query.items()]
        url, params = url + "?" + "&".join(pairs), {}
    request = AWSRequest(method=method, url=url, data=body, params=params, headers=extra)
    request.context["client_config"] = SimpleNamespace(s3={"payload_signing_enabled": not unsigned})
    botocore.auth.get_current_datetime = lambda: datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
    credentials = Credentials("AKIDEXAMPLE", secret, token)
    if express:
        signer = botocore.auth.S3ExpressAuth(credentials, "s3express", region, identity_cache=None)
    else:
        signer = botocore.auth.S3SigV4Auth(credentials, "s3", region)
    signer.add_auth(request)
    sent = {name.lower(): value for name, value in request.headers.items()}
    return {
        "method": method,
        "prefix": "/" if virtual else "/bucket/",
        "key": key,
        "query": sorted(query.items(), key=lambda item: (quote(item[0], safe="-_.~"), item[1])),
        "host": botocore.auth._host_from_url(url),
        "headers": extra,
        "body": body.decode(),
        "payload": sent["x-amz-content-sha256"],
        "secret": secret,
        "token": token,
        "express": express,
        "region": region,
        "at": at,
        "authorization": sent["authorization"],
    }


def main():
    rng = random.Random(int(sys.argv[2]))
    for _ in range(int(sys.argv[1])):
        print(json.dumps(case(rng), ensure_ascii=False, separators=(",", ":")))


main()
