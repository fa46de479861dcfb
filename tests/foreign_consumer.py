"""A consumer as somebody would write it in another language: nothing of the product, only HTTP, SQS and S3.

It takes the messages of a queue in turn, and writes each answer of the API as one line of JSON. Run it as a script.
Arguments, as one JSON object: the API's URL and token, the URL of SQS and S3, and the URL of the queue.
"""

import hashlib
import json
import sys
import urllib.error
import urllib.request
from typing import Any

import boto3

MINE, OTHERS = "points-7", "points-8"


class Receipts:
    """The receipts of one message's job."""

    def __init__(self, api: str, token: str, key: str) -> None:
        self._place = f"{api}/receipts/{key}"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, **body: Any) -> tuple[int, Any]:
        request = urllib.request.Request(self._place, json.dumps(body).encode(), self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return self._note(method, answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return self._note(method, error.code, error.headers, error.read())

    def _note(self, method: str, status: int, headers: Any, raw: bytes) -> tuple[int, Any]:
        body = json.loads(raw)
        told = {"method": method, "status": status, "type": headers["Content-Type"], "body": body}
        sys.stdout.write(json.dumps(told | {"retry_after": headers["Retry-After"]}) + "\n")
        return status, body


def work(receipts: Receipts, points: int, *, good: bool) -> None:
    """Take a job, keep it, and end it; a failed one is taken again."""
    _, taken = receipts.ask("POST", worker=MINE)
    claim = taken["claim"]
    assert receipts.ask("POST", worker=OTHERS)[0] == 409, "one worker has it at a time"
    assert receipts.ask("PATCH", claim=claim, lease_s=30)[0] == 200
    if not good:
        assert receipts.ask("PUT", claim=claim, status="failed", reason="no points today")[0] == 200
        _, taken = receipts.ask("POST", worker=OTHERS)
        assert taken["attempts"] == 2
        assert receipts.ask("PATCH", claim=claim)[0] == 409, "the claim has passed on"
        claim = taken["claim"]
    end = {"claim": claim, "status": "completed", "result": {"points": points}}
    assert receipts.ask("PUT", **end) == receipts.ask("PUT", **end), "the same again is answered the same"
    assert receipts.ask("POST", worker=OTHERS)[1]["status"] == "completed"


def content_hash(records: list[Any]) -> str:
    """Come to the content hash; these records have plain numbers and ASCII names."""
    texts = [json.dumps(one, sort_keys=True, separators=(",", ":"), ensure_ascii=False) for one in records]
    return hashlib.sha256(b"".join(hashlib.sha256(text.encode()).digest() for text in texts)).hexdigest()


def main(api: str, token: str, endpoint: str, queue: str) -> None:
    sqs = boto3.client("sqs", endpoint_url=endpoint, region_name="us-east-1")
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    for good in (True, False):
        (message,) = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=1, WaitTimeSeconds=5)["Messages"]
        job = json.loads(message["Body"])
        document = json.load(s3.get_object(Bucket=job["object"]["bucket"], Key=job["object"]["key"])["Body"])
        assert content_hash(document["records"]) == job["content_hash"]
        work(Receipts(api, token, job["idempotency_key"]), job["records"], good=good)
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert not {"ledger", "dispatch", "ops"} & set(sys.modules)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
