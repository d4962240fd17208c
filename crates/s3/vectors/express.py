"""What boto3 sends to S3 Express, one JSON object a line: `python express.py`.

Nothing leaves the process: a hook answers every request, the session's with fixed credentials. The clock is fixed too.
"""

import datetime
import json
from io import BytesIO
from urllib.parse import urlsplit

import boto3
import botocore.auth
from botocore.awsrequest import AWSResponse
from botocore.config import Config

BUCKET = "kv--use1-az4--x-s3"
AT = 1_800_000_000
SESSION = {"key": "ASIASESSION1", "secret": "session/secret+1", "token": "token/1=="}
LEFT_OUT = {"user-agent", "amz-sdk-invocation-id", "amz-sdk-request", "accept-encoding", "expect"}

botocore.auth.get_current_datetime = lambda *_: datetime.datetime.fromtimestamp(AT, datetime.timezone.utc)


class Raw(BytesIO):
    def stream(self, **_):
        yield self.read()


def answer(operation, request):
    headers = {name.lower(): value.decode() if isinstance(value, bytes) else value for name, value in request.headers.items()}
    headers["host"] = urlsplit(request.url).netloc
    url = urlsplit(request.url)
    body = request.body or b""
    body = body if isinstance(body, (bytes, bytearray)) else body.read()
    secret = SESSION["secret"] if "x-amz-s3session-token" in headers else "skbase-secret"
    print(
        json.dumps(
            {
                "operation": operation,
                "method": request.method,
                "path": url.path or "/",
                "query": url.query,
                "headers": {name: value for name, value in sorted(headers.items()) if name not in LEFT_OUT},
                "body": body.decode(),
                "secret": secret,
                "at": AT,
            },
            separators=(",", ":"),
        )
    )
    text = ""
    if operation == "CreateSession":
        text = (
            "<CreateSessionResult><Credentials><SessionToken>{token}</SessionToken><SecretAccessKey>{secret}</SecretAccessKey>"
            "<AccessKeyId>{key}</AccessKeyId><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></CreateSessionResult>"
        ).format(**SESSION)
    return AWSResponse(request.url, 200, {}, Raw(text.encode()))


def main():
    config = Config(request_checksum_calculation="when_required", response_checksum_validation="when_required")
    keys = {"aws_access_key_id": "AKBASE", "aws_secret_access_key": "skbase-secret"}
    client = boto3.client("s3", region_name="us-east-1", config=config, **keys)
    client.meta.events.register("before-send.s3", lambda request, event_name, **_: answer(event_name.split(".")[-1], request))

    def ask(operation, **arguments):
        try:
            getattr(client, operation)(Bucket=BUCKET, **arguments)
        except Exception:  # The answers are empty; what counts is what was asked.
            pass

    ask("get_object", Key="dir/obj 1")
    ask("get_object", Key="dir/obj 1", Range="bytes=0-4")
    ask("head_object", Key="dir/obj 1")
    ask("put_object", Key="dir/obj 1", Body=b"hello express")
    ask("put_object", Key="once", Body=b"x", IfNoneMatch="*")
    ask("list_objects_v2", Prefix="dir/", EncodingType="url")
    ask("delete_object", Key="dir/obj 1")
    ask("head_bucket")
    ask("create_session", SessionMode="ReadWrite")
    ask("create_session", SessionMode="ReadOnly")
    zone = {"Type": "AvailabilityZone", "Name": "use1-az4"}
    kind = {"Type": "Directory", "DataRedundancy": "SingleAvailabilityZone"}
    ask("create_bucket", CreateBucketConfiguration={"Location": zone, "Bucket": kind})
    ask("delete_bucket")


main()
