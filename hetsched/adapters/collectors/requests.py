"""Requests for JSON documents through the egress filter of all outbound calls.

A response is accepted only with status 200, a JSON content type and a valid JSON body. Messages never quote a response.
The token is sent only to the source's own address, never to the target of a redirect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from hetsched.adapters.http import outbound
from hetsched.adapters.http.outbound import AllowedHosts, OutboundError
from hetsched.contracts.message import Message, as_message

_FORM = "application/x-www-form-urlencoded"


class SourceError(Exception):
    """A source returned no usable response; `code` is stable, the message is human-readable and quotes no response."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = as_message(message)


class CollectorClient:
    """HTTP client of a collector: the allowed hosts, the token and the limits."""

    def __init__(
        self,
        allowed: AllowedHosts,
        *,
        token: str = "",
        most: int = outbound.MOST_BYTES,
    ) -> None:
        self._allowed, self._most = allowed, most
        self._headers = {"Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def json(self, url: str, form: Mapping[str, str] | None = None) -> Any:
        """Fetch a JSON document, by POST if `form` is given, otherwise by GET. Raises: SourceError."""
        headers, body = self._headers, None
        if form is not None:
            headers, body = {**headers, "Content-Type": _FORM}, urlencode(form).encode()
        try:
            answer = outbound.call(
                url,
                self._allowed,
                method="GET" if body is None else "POST",
                headers=headers,
                body=body,
                most=self._most,
            )
        except OutboundError as refused:
            raise SourceError(refused.code, refused.message) from None
        host = urlsplit(url).netloc
        if answer.status != 200:
            raise SourceError(
                f"Answer{answer.status}", Message("{host} responded with status {n}", host=host, n=answer.status)
            )
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise SourceError("AnswerNotJson", Message("{host} did not send JSON", host=host))
        try:
            return msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise SourceError("AnswerNotJson", Message("the response of {host} is not JSON", host=host)) from None
