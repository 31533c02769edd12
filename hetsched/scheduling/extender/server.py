"""The extender process: the TLS server, and a plain HTTP port for probes and metrics.

Each call is decoded, handled for the caller's cluster, and encoded. `filter` and `bind` report a rejection inside their
response, and kube-scheduler copies the text to the pod's events; `prioritize` and `preempt` have no field for a
rejection and respond with 503. Any failure is reported like a rejection, never as a success. A client listed without a
cluster is served for the default cluster, or else for the only live cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError

from hetsched.adapters.kubernetes.extender_messages import (
    ExtenderBindingResult,
    FilterResult,
    read_args,
    read_binding,
    read_preemption,
)
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.inventory.models import Cluster, ClusterKind

from .extender import Extender
from .probes import ProbeServer
from .request_context import close_expired_connections
from .tls_server import Certificates, ExtenderResponse, TlsServer, Verb

log = structlog.get_logger(__name__)


class Extenders:
    """The extenders of this process, one per cluster, each created at the first request for its cluster."""

    def __init__(self, make: Callable[[Cluster], Extender]) -> None:
        self._make = make
        self._known: dict[int, Extender] = {}
        self._lock = threading.Lock()

    def of(self, name: str) -> Extender:
        """Return the extender of a cluster. Raises: InputError `ClusterUnknown` or `ClusterAmbiguous`."""
        live = Cluster.objects.filter(kind=ClusterKind.KUBERNETES).defer("definitions").order_by("id")
        name = name or settings.HETSCHED_DEFAULT_CLUSTER
        found = list(live.filter(name=name) if name else live[:2])
        if len(found) > 1:
            hint = "Use NAME=CLUSTER in HETSCHED_EXTENDER_CLIENTS"
            raise InputError("ClusterAmbiguous", "there are several live clusters", hint=hint)
        if not found:
            raise InputError(
                "ClusterUnknown", f"there is no live cluster {name!r}" if name else "no live cluster exists"
            )
        with self._lock:
            known = self._known.get(found[0].pk)
            if known is None:
                known = self._known[found[0].pk] = self._make(found[0])
        return known


def verbs(extenders: Extenders) -> dict[str, Verb]:
    """Return the handlers of the extender's verbs."""

    def filter_(cluster: str, body: bytes) -> ExtenderResponse:
        args = read_args(body)
        return _respond(lambda: extenders.of(cluster).filter(args), lambda text: FilterResult(error=text))

    def bind(cluster: str, body: bytes) -> ExtenderResponse:
        args = read_binding(body)

        def bound() -> ExtenderBindingResult:
            extenders.of(cluster).bind(args)
            return ExtenderBindingResult()

        return _respond(bound, ExtenderBindingResult)

    def prioritize(cluster: str, body: bytes) -> ExtenderResponse:
        args = read_args(body)
        return _respond(lambda: extenders.of(cluster).prioritize(args))

    def preempt(cluster: str, body: bytes) -> ExtenderResponse:
        args = read_preemption(body)
        return _respond(lambda: extenders.of(cluster).preempt(args))

    return {"filter": filter_, "prioritize": prioritize, "preempt": preempt, "bind": bind}


def _respond(answer: Callable[[], Any], no: Callable[[str], Any] | None = None) -> ExtenderResponse:
    """Run `answer` and encode its result; `no` wraps the text of a rejection in the verb's response body.

    Raises: InputError if the response has no field for a rejection.
    """
    try:
        return ExtenderResponse(encode(answer()))
    except InputError as error:
        refusal = error
    except DatabaseError as error:
        log.warning("database unavailable", error=repr(error))
        refusal = InputError("DatabaseAway", "the database does not respond")
    except Exception as error:
        log.exception("request failed")
        refusal = InputError("ExtenderFailed", f"the request failed: {type(error).__name__}")
    finally:
        close_expired_connections()
    if no is None or refusal.code == "ExtenderArgsInvalid":
        raise refusal
    return ExtenderResponse(encode(no(f"hetsched: {refusal}")), refused=True)


def clients_of(listed: list[str]) -> dict[str, str]:
    """Parse the entries `NAME` and `NAME=CLUSTER`. Raises: InputError `ExtenderClientsMissing`."""
    if not listed:
        hint = "List the names of client certificates, as NAME or NAME=CLUSTER, separated by commas"
        raise InputError("ExtenderClientsMissing", "no client is listed", place="HETSCHED_EXTENDER_CLIENTS", hint=hint)
    return {name.strip(): cluster.strip() for name, _, cluster in (one.partition("=") for one in listed)}


def serve(ended: threading.Event) -> None:
    """Serve until `ended` is set. Raises: InputError if certificates, clients or ports are unusable."""
    seconds = settings.HETSCHED_EXTENDER_SECONDS
    extenders = Extenders(lambda cluster: Extender(cluster, seconds))
    clients = clients_of(settings.HETSCHED_EXTENDER_CLIENTS)
    certificates = Certificates(Path(settings.HETSCHED_EXTENDER_CERTIFICATES))
    host = settings.HETSCHED_EXTENDER_HOST
    listener = _open(host, settings.HETSCHED_EXTENDER_PORT, lambda at: TlsServer(
        at, certificates, clients, verbs(extenders), settings.HETSCHED_EXTENDER_BYTES
    ))  # fmt: skip
    probes = _open(host, settings.HETSCHED_EXTENDER_PROBE_PORT, ProbeServer)
    servers = (listener, probes)
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    log.info("extender is listening", host=host, port=listener.server_address[1], clients=sorted(clients))
    _warm_up(extenders, clients)
    ended.wait()
    for server in servers:
        server.shutdown()
        server.server_close()


def _open(host: str, port: int, make: Callable[[tuple[str, int]], Any]) -> Any:
    try:
        return make((host, port))
    except OSError as error:
        message = error.strerror or str(error)
        raise InputError("PortBusy", f"{host}:{port}: {message}", place="HETSCHED_EXTENDER_PORT") from None


def _warm_up(extenders: Extenders, clients: Mapping[str, str]) -> None:
    """Load the snapshots of the listed clusters, so that the first pods do not wait for the load."""
    for name in sorted(set(clients.values())):
        try:
            extenders.of(name).warm_up()
        except (InputError, DatabaseError) as error:
            log.info("scheduler cache is loading", cluster=name, reason=str(error))
        finally:
            close_expired_connections()
