"""AWS errors in the product's words: one line that says what failed, where, and how to mend it."""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from obstore import exceptions as obs

from ledger.errors import DispatchLedgerError, InputError, UnavailableError

_NOT_ALLOWED = {"AccessDenied", "AccessDeniedException", "403"}
_NO_ACCESS = _NOT_ALLOWED | {
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidSignatureException",
}
THROTTLES = {
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestLimitExceeded",
    "ProvisionedThroughputExceededException",
    "SlowDown",
    "TooManyRequestsException",
    "KmsThrottled",
    "KMS.ThrottlingException",
    "OverLimit",
}


def code_of(error: boto.ClientError) -> str:
    """Return the service's own error code."""
    return str(error.response.get("Error", {}).get("Code", ""))


def is_denied(error: DispatchLedgerError) -> bool:
    """Say whether a service knows who asks, and says no."""
    cause = error.__cause__
    return isinstance(cause, boto.ClientError) and code_of(cause) in _NOT_ALLOWED


def translate(error: Exception, what: str) -> DispatchLedgerError:
    """Say an AWS error on one line; `what` is what was being done, with the name of the thing."""
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError | boto.CredentialRetrievalError):
        return InputError(
            f"{what}: no usable AWS credentials ({error}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "AWS_PROFILE, or give the machine a role",
        )
    if isinstance(error, boto.NoRegionError):
        return InputError(f"{what}: no AWS region is known; set aws.region or AWS_REGION")
    if isinstance(
        error, boto.ProfileNotFound | boto.InvalidConfigError | boto.ConfigParseError | boto.InvalidRegionError
    ):
        return InputError(f"{what}: {error}; mend the AWS configuration, or AWS_PROFILE, AWS_REGION and aws.region")
    if isinstance(error, boto.ClientError):
        return _translate_answer(error, what)
    if isinstance(error, obs.PermissionDeniedError | obs.UnauthenticatedError):
        return InputError(f"{what}: access was denied; check the AWS credentials and their permissions")
    if isinstance(error, obs.NotFoundError):
        return InputError(f"{what}: the bucket does not exist; create it, or mend objects.bucket")
    return UnavailableError(
        f"{what}: no answer ({_first_line(error)}); check aws.endpoint_url and the network, then run again"
    )


def _translate_answer(error: boto.ClientError, what: str) -> DispatchLedgerError:
    code, message = code_of(error), error.response.get("Error", {}).get("Message", "")
    if code in _NO_ACCESS:
        return InputError(
            f"{what}: access was denied ({code}: {message}); check the AWS credentials and their permissions"
        )
    if code in THROTTLES:
        return UnavailableError(f"{what}: still throttled after bounded retries ({code}); run again later")
    return UnavailableError(f"{what}: {code}: {message}; run again when that is mended")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn AWS errors inside into the product's own."""
    try:
        yield
    except (boto.BotoCoreError, boto.ClientError, ResponseParserError, obs.BaseError) as error:
        raise translate(error, what) from error
