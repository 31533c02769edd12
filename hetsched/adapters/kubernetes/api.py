"""Raw calls to one API server.

Request and response bodies are bytes. Typed clients parse about a hundred times slower than needed, can raise after a
write that succeeded, and accept names such as `..` that change the path. Here the HTTP status alone decides between
success and failure, every name is validated before it goes into a path, and each call has its own timeouts.
Source: Kubernetes documentation, "Kubernetes API Concepts".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec
import urllib3

from hetsched.adapters.http.outbound import reach
from hetsched.contracts.errors import InputError, with_hint
from hetsched.contracts.message import Message, shortened, verbatim

from .connections.connection_pool import GUARDED
from .wire import Connect, Wire, WireConnection, WireError, WireResponse

if TYPE_CHECKING:
    from kubernetes import client

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
NOT_PROCESSED = "NotProcessed"  # reason of a failure that guarantees that the server has not processed the call
PAGE = 500
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class ApiFailure(Exception):
    """The API server returned an error (`status` 4xx or 5xx) or no response (`status` 0).

    `retry_after_seconds` is the Retry-After value, 0 if absent. `causes` lists the reasons in the Status details.
    `text` contains status, reason and message; the message of an API server is not translated.
    """

    def __init__(
        self, status: int, reason: str, message: str, retry_after_seconds: float = 0.0, causes: tuple[str, ...] = ()
    ) -> None:
        self.text = Message(
            "{name}: {detail}", name=f"{status} {reason}" if status else reason, detail=verbatim(message)
        )
        super().__init__(str(self.text))
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.causes = causes


class Resource(msgspec.Struct, frozen=True):
    """One kind of object as the API server serves it.

    `older` lists versions that earlier API servers serve instead of `version`, newest first. The fields that hetsched
    reads must be the same in all of them.
    """

    group: str
    version: str
    plural: str
    kind: str
    older: tuple[str, ...] = ()

    def in_all_versions(self) -> list[Resource]:
        """Return the kind in each of its versions, newest first."""
        return [msgspec.structs.replace(self, version=version) for version in (self.version, *self.older)]

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str = "", name: str = "", part: str = "") -> str:
        """Return the path of the collection, of one object, or of a subresource (`status`, `binding`).

        Raises: ValueError for a name that is not a DNS name.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        steps = ["namespaces", _checked(namespace)] if namespace else []
        steps.append(self.plural)
        if name:
            steps.append(_checked(name))
        return "/".join([root, *steps, *([part] if part else [])])


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None


class _ErrorStatus(msgspec.Struct):
    reason: str = ""
    message: str = ""
    details: _Details | None = None


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    next_page: str = msgspec.field(default="", name="continue")


class _ObjectList(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] = []


# Collections of review objects; a POST to them does not change the cluster.
_ASKING = ("/selfsubjectaccessreviews", "/tokenreviews")
_status = msgspec.json.Decoder(_ErrorStatus)
_list = msgspec.json.Decoder(_ObjectList)


class Api:
    """Calls to one API server under one identity. Safe for use from several threads.

    `count_call` is called with the verb and the response status of each call; the status is 0 if there was no response.
    If `reads` is true (shadow mode), the client is read-only and rejects every call that could change the cluster.
    `connect` replaces the egress filter of short calls, for a user's own connections; a watch always uses the filter.
    `wire` holds the connections of short calls. Another one replaces it when the client certificate is renewed.
    """

    def __init__(
        self,
        configuration: client.Configuration,
        *,
        agent: str = "hetsched",
        count_call: Callable[[str, int], None] = lambda verb, status: None,
        reads: bool = False,
        connect: Connect = reach,
    ) -> None:
        self._configuration = configuration
        self._agent = agent
        self._count_call = count_call
        self._reads = reads
        configuration.retries = False
        configuration.connection_pool_maxsize = 32
        self._connect = connect
        self._certificate = configuration.cert_file
        self.wire = Wire(configuration, connect)
        # Only the connection pool and the certificates of the official client are used, for watches; its typed calls
        # are not.
        from kubernetes import client  # slow to import, and not every process has a live cluster

        self._pool = client.ApiClient(configuration).rest_client.pool_manager
        self._pool.pool_classes_by_scheme = GUARDED

    def use_token(self, token: str) -> None:
        """Send this bearer token with all further requests."""
        self._configuration.api_key["BearerToken"] = f"Bearer {token}"

    def _use_certificate(self, path: str | None) -> None:
        """Open new connections with a client certificate that a program has renewed."""
        self._certificate = path
        self.wire = Wire(self._configuration, self._connect)
        self._pool.connection_pool_kw.update(cert_file=path, key_file=self._configuration.key_file)
        self._pool.clear()

    def _reject_credential(self) -> None:
        """Request another credential from a program after the response 401."""
        if reject := getattr(self._configuration.refresh_api_key_hook, "reject", None):
            reject()

    def _headers(self, content: str = "") -> dict[str, str]:
        headers = {"User-Agent": self._agent, "Accept": "application/json"}
        try:
            credential = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except InputError as error:  # a program for credentials failed, so no request was sent
            raise ApiFailure(401, error.code, with_hint(error.message, error.hint)) from None
        if self._configuration.cert_file != self._certificate:
            self._use_certificate(self._configuration.cert_file)
        if credential:
            headers["Authorization"] = credential
        if content:
            headers["Content-Type"] = content
        return headers

    def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """Return the body of a GET. Raises: ApiFailure."""
        return self.send("GET", path, query=query)

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> bytes:
        """Make one call and return the body. Raises: ApiFailure; status 0 leaves the outcome of a write unknown."""
        self._check_permitted(method, path)
        headers = self._headers(content if body else "")
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            answer = self.wire.call(
                method, target, headers, body, connect_seconds=CONNECT_SECONDS, read_seconds=READ_SECONDS
            )
        except WireError as error:
            raise self.count_failure(method, error) from None
        return self.read_response(method, answer)

    @property
    def may_block(self) -> bool:
        """Return True if the headers of the next request may wait for a program for credentials."""
        check = getattr(self._configuration.refresh_api_key_hook, "may_block", None)
        return bool(check is not None and check())

    def request(self, method: str, path: str, body: bytes, content: str = "application/json") -> bytes:
        """Return the bytes of a call with a body, for a connection of `wire`. Raises: ApiFailure."""
        self._check_permitted(method, path)
        return self.wire.request(method, path, self._headers(content), body)

    def renew_credential(self) -> None:
        """Wait for a program for credentials if `may_block` is True. Raises: ApiFailure."""
        self._headers()

    def open_connection(self) -> WireConnection:
        """Open a connection of `wire` for parallel calls; a failure counts as a failed POST. Raises: ApiFailure."""
        try:
            return self.wire.open(CONNECT_SECONDS)
        except WireError as error:
            raise self.count_failure("POST", error) from None

    def count_failure(self, method: str, error: WireError) -> ApiFailure:
        """Count a call without a response and return its failure."""
        self._count_call(method.lower(), 0)
        return _unreachable(error)

    def read_response(self, method: str, answer: WireResponse) -> bytes:
        """Count a call and return the body of its response. Raises: ApiFailure."""
        self._count_call(method.lower(), answer.status)
        if answer.status == 401:
            self._reject_credential()
        if answer.status >= 300:
            raise _refused(answer, answer.data)
        return answer.data

    def _check_permitted(self, method: str, path: str) -> None:
        """Reject a write in shadow mode. Raises: ApiFailure."""
        if self._reads and method != "GET" and not path.endswith(_ASKING):
            raise ApiFailure(
                403,
                "InShadow",
                Message("{text}: this cluster is in shadow mode, so hetsched writes nothing", text=f"{method} {path}"),
            )

    @contextmanager
    def stream(self, path: str, query: Mapping[str, str], *, quiet_seconds: float) -> Iterator[Iterator[bytes]]:
        """Yield the lines of a response as they arrive. Raises: ApiFailure, also after `quiet_seconds` without data."""
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=quiet_seconds)
        try:
            answer: Any = self._pool.request(
                "GET", self._url(path, query), headers=self._headers(), timeout=timeout, preload_content=False,
                redirect=False,
            )  # fmt: skip
        except urllib3.exceptions.HTTPError as error:
            self._count_call("watch", 0)
            raise _unreachable(error) from None
        self._count_call("watch", answer.status)
        if answer.status == 401:
            self._reject_credential()
        try:
            if answer.status >= 300:
                raise _refused(answer, answer.read())
            yield _lines(answer)
        except urllib3.exceptions.HTTPError as error:
            raise _unreachable(error) from None
        finally:
            answer.close()

    def list_all(self, resource: Resource) -> tuple[list[bytes], str]:
        """Return all objects of a kind, as the API server's own JSON, and the resourceVersion of the list.

        A list that expires between pages (410) is restarted once. Raises: ApiFailure.
        """
        try:
            pages = list(self.list_pages(resource))
        except ApiFailure as failure:
            if failure.status != 410:
                raise
            pages = list(self.list_pages(resource))
        return [item for items, _ in pages for item in items], pages[-1][1]

    def list_pages(self, resource: Resource) -> Iterator[tuple[list[bytes], str]]:
        """Yield the objects of a kind page by page, each page with the resourceVersion of the list.

        Raises: ApiFailure, with status 410 for a list that expires between pages.
        """
        query = {"limit": str(PAGE)}
        while True:
            page = _list.decode(self.get(resource.path(), query))
            yield [bytes(item) for item in page.items], page.metadata.resource_version
            if not page.metadata.next_page:
                return
            query["continue"] = page.metadata.next_page

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        address = f"{self._configuration.host}{path}"
        return f"{address}?{urlencode(query)}" if query else address


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or ".." in name:
        raise ValueError(f"{name[:80]!r} is not a DNS name")
    return quote(name, safe="")


def _lines(answer: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in answer.stream(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole


def _refused(answer: Any, body: bytes) -> ApiFailure:
    try:
        status = _status.decode(body)
    except msgspec.DecodeError:
        # do not pass on text from a server that is not an API server
        status = _ErrorStatus(message="the response is not from a Kubernetes API server")
    wait = answer.headers.get("retry-after", "")
    causes = status.details.causes if status.details is not None else None
    return ApiFailure(
        answer.status,
        status.reason or "Refused",
        status.message,
        float(wait) if wait.isdecimal() else 0.0,  # the header may contain a date, but API servers send seconds
        tuple(cause.reason for cause in causes or ()),
    )


def _unreachable(error: Exception) -> ApiFailure:
    return ApiFailure(0, "Unreachable", shortened(error.message if isinstance(error, WireError) else str(error), 300))
