"""SendMessageBatch without the SDK's generic way there and back, which costs more than all the rest of a send.

The client stays botocore's: its endpoint, its credentials and signature, its connection pool with proxies, certificates
and time-outs. Only building the request and reading the answer are done here, for this one operation.
Source: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
"""

from typing import Any

import msgspec
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError

_OPERATION = "SendMessageBatch"
_HEADERS = {"X-Amz-Target": f"AmazonSQS.{_OPERATION}", "Content-Type": "application/x-amz-json-1.0"}
_OK = 200


class BatchSender:
    """Sends batches over a client's connections, beside its retries: one call is one try.

    Args:
        client: a botocore client for SQS.
    """

    def __init__(self, client: Any) -> None:
        self._url: str = client.meta.endpoint_url
        self._region: str = client.meta.region_name
        # Two names that botocore does not promise; the tests of the queues send through them.
        self._http = client._endpoint.http_session  # noqa: SLF001
        self._signer = client._request_signer  # noqa: SLF001

    def send(self, queue_url: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """Send one batch; returns the answer as SQS gave it.

        Raises:
            ClientError: when SQS refuses the call.
            HTTPClientError: when there is no answer.
            ValueError: when the answer cannot be read.
        """
        body = msgspec.json.encode({"QueueUrl": queue_url, "Entries": entries})
        request = AWSRequest(method="POST", url=f"{self._url.rstrip('/')}/", data=body, headers=dict(_HEADERS))
        self._signer.get_auth_instance("sqs", self._region, signature_version="v4").add_auth(request)
        response = self._http.send(request.prepare())
        if response.status_code != _OK:
            raise _error(response.status_code, response.content, response.headers)
        return msgspec.json.decode(response.content, type=dict[str, Any])


def _error(status: int, content: bytes, headers: Any) -> ClientError:
    """Read an error as botocore does: the query-compatible code in the headers goes before that of the body."""
    try:
        body = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = {}
    code = str(headers.get("x-amzn-query-error", "")).split(";", 1)[0] or str(body.get("__type", "")).rsplit("#", 1)[-1]
    text = str(body.get("message", body.get("Message", "")))
    answer: Any = {
        "Error": {"Code": code or str(status), "Message": text},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, _OPERATION)
