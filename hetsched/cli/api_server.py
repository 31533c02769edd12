"""Failures of the API server in commands that read a cluster without a hetsched server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .client import ServerUnavailable

# Remedy by the HTTP status of a failed call; 0: no response.
_HINTS = {
    0: "Check the server address of the context, the network route and the certificate authority",
    401: "The API server rejects the credentials: renew the token or certificate of the context's user",
    403: "The user of the context has no permission for this call; kubectl auth can-i --list shows the permissions",
}
_TEMPORARY = "The API server reports an internal or temporary error: try again"


@contextmanager
def api_server_errors(hints: dict[int, str] | None = None) -> Iterator[None]:
    """Turn failed calls into the error of the command; `hints` replaces remedies by HTTP status.

    Raises: ServerUnavailable `ApiServerFailed`.
    """
    from hetsched.adapters.kubernetes.api import ApiFailure

    try:
        yield
    except ApiFailure as failure:
        hint = {**_HINTS, **(hints or {})}.get(failure.status, _TEMPORARY)
        raise ServerUnavailable("ApiServerFailed", str(failure), place="API server", hint=hint) from None
