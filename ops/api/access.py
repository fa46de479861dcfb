"""Who asks, and what they may do: bearer tokens with a role each; without tokens, only this machine."""

import hashlib
import hmac
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from ops.api.problems import ProblemError

Role = Literal["viewer", "operator", "approver"]
_RANK: dict[Role, int] = {"viewer": 0, "operator": 1, "approver": 2}
_SAFE = {"GET", "HEAD", "OPTIONS"}
# What a browser says of a request that no page made, or one from here.
_OWN_SITE = {"none", "same-origin"}
_scheme = HTTPBearer(auto_error=False, description="A token of `api.tokens`; none is needed while there are none.")


@dataclass(frozen=True)
class Principal:
    """Who asks: the token's name, or `local` without tokens."""

    name: str
    role: Role

    def require(self, role: Role) -> None:
        """Refuse what a role does not allow; each role may also do what those before it may.

        Raises:
            ProblemError: 403.
        """
        if _RANK[self.role] < _RANK[role]:
            raise ProblemError(403, f"this needs the role {role}; the token {self.name!r} has {self.role}")


def is_loopback(host: str) -> bool:
    """Say whether a host's name or address is this machine's own, by its text alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def identify(request: Request) -> Principal:
    """Say who asks.

    Raises:
        ProblemError: 401 without a good token.
    """
    tokens = request.app.state.api.settings.api.tokens
    if not tokens:
        return Principal("local", "approver")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise ProblemError(401, "send a token: Authorization: Bearer TOKEN", _challenge())
    digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()
    # Every token is compared, each in constant time: how long it takes tells nothing.
    fits = [name for name, one in tokens.items() if hmac.compare_digest(one.sha256, digest)]
    if not fits:
        raise ProblemError(401, "nobody here has this token", _challenge('error="invalid_token"'))
    return Principal(fits[0], tokens[fits[0]].role)


def _challenge(*more: str) -> dict[str, str]:
    return {"WWW-Authenticate": ", ".join(['Bearer realm="dispatch-ledger"', *more])}


def require_local(request: Request) -> None:
    """Refuse what a web page of somebody else's could make a browser on this machine send, while there are no tokens.

    Raises:
        ProblemError: 403.
    """
    if request.app.state.api.settings.api.tokens:
        return
    host = request.headers.get("host", "")
    if not is_loopback(_parts(f"//{host}")[0]):
        raise ProblemError(403, "without api.tokens this server answers to localhost and loopback addresses only")
    if request.method in _SAFE:
        return
    origin = request.headers.get("origin")
    foreign = origin is not None and _parts(origin)[1] != host
    if foreign or request.headers.get("sec-fetch-site", "none") not in _OWN_SITE:
        raise ProblemError(403, "without api.tokens nothing is changed for another site's page")


def _parts(url: str) -> tuple[str, str]:
    """Return a URL's host, and its host with the port; nothing of one that is none."""
    try:
        return urlsplit(url).hostname or "", urlsplit(url).netloc
    except ValueError:
        return "", ""


def _with(role: Role) -> Callable[[Request], Principal]:
    def check(request: Request) -> Principal:
        principal = identify(request)
        principal.require(role)
        return principal

    return check


# The first is only how the document of the API tells of tokens.
bearer = Security(_scheme)
Viewer = Annotated[Principal, Depends(_with("viewer"))]
Operator = Annotated[Principal, Depends(_with("operator"))]
Approver = Annotated[Principal, Depends(_with("approver"))]
