"""`isa/`: available instruction sets, the meaning of an ISA string, and the requirements of a program or image.

The views use the same code as `hetsched isa parse` and `hetsched isa inspect`. An uploaded file is copied in chunks
into an anonymous file, inspected without being run or unpacked, and deleted with the response; `HETSCHED_BINARY_BYTES`
limits its size.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any, ClassVar

from django.conf import settings
from django.db.models import Count
from django.http import HttpResponse
from django.http.request import UnreadablePostError
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.adapters.oci.inspection import inspect_path
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.remedies import INSPECT_LOCALLY
from hetsched.inventory.models import Cluster
from hetsched.isa import Isa, isa_document, lattice, parse

from .. import bodies, request_scope
from ..documents import Document
from ..views import ApiView, answer
from ..whatif.what_if import simulation_slot

BINARY = "application/octet-stream"
MOST_TEXT = 4_000
_PIECE = 1 << 20
_INSPECTING = threading.BoundedSemaphore(1)  # separate limit, so that uploads do not delay what-ifs


class IsaFamily(Document, frozen=True):
    """ISA family: each of the `bases` with all its extensions, each of the `features` with the features that it
    implies, and the number of nodes that have it.
    """

    bases: list[dict[str, Any]]
    features: list[dict[str, Any]]
    nodes: dict[str, int]


class IsaFamilies(Document, frozen=True):
    """Available instruction sets; `unknown` is the number of nodes whose instruction set is unknown."""

    riscv: IsaFamily
    x86: IsaFamily
    arm: IsaFamily
    unknown: int


class IsaMeaning(Document, frozen=True):
    """Parsed ISA string; `extensions` includes the implied ones."""

    input: str
    arch: str
    xlen: int
    base: str
    extensions: list[str]
    canonical: str


class IsaNeed(Document, frozen=True):
    """Instruction-set requirement of a program or an image. `requirement` is null if there are several;
    `requirements` has one entry for each family.
    """

    file: str
    format: str
    requirement: str | None


class IsaFamiliesView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = request_scope.CLUSTER_QUERY

    @extend_schema(responses=IsaFamilies)
    def get(self, request: Any) -> HttpResponse:
        """List bases and features, with the number of nodes of a cluster that have each."""
        counts, unknown = _nodes_with(request_scope.selected_cluster(request))
        known = lattice()
        families = {name: IsaFamily(**known[name], nodes=counts[name]) for name in ("riscv", "x86", "arm")}
        return answer(request, IsaFamilies(**families, unknown=unknown))


def _nodes_with(cluster: Cluster) -> tuple[dict[str, dict[str, int]], int]:
    counts: dict[str, dict[str, int]] = {"riscv": {}, "x86": {}, "arm": {}}
    unknown = 0
    stated = cluster.nodes.order_by().values_list("isa").annotate(Count("id"))
    for text, nodes in stated:
        isa = _offered(text)
        if isa is None:
            unknown += nodes
            continue
        found = counts[isa.arch]
        for name in isa.extensions | isa.explicit:
            found[name] = found.get(name, 0) + nodes
    return counts, unknown


def _offered(text: str) -> Isa | None:
    try:
        return parse(text, source="node-label") if text else None
    except InputError:
        return None


class IsaParseView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {"text": "Instruction set as written in a pod."}

    @extend_schema(responses=IsaMeaning)
    def get(self, request: Any) -> HttpResponse:
        """Parse an ISA string."""
        text = request.GET.get("text", "")
        if len(text) > MOST_TEXT:
            message = Message("the text has more than {n} characters", n=MOST_TEXT)
            raise InputError("QueryInvalid", message, place="text", hint="Send a shorter text")
        return answer(request, isa_document(parse(text)))


class IsaInspectionView(ApiView):
    actions: ClassVar = {"POST": Action.VIEW}
    within: ClassVar = ("POST",)
    queries: ClassVar = {"file": "Name of the program, returned in the response."}

    @extend_schema(request={BINARY: OpenApiTypes.BINARY}, responses=IsaNeed)
    def post(self, request: Any) -> HttpResponse:
        """Return the node requirements of an ELF program or an image archive; the upload is not stored."""
        bodies.media_type(request, BINARY)
        with tempfile.NamedTemporaryFile(prefix="hetsched-inspect-") as file:
            _copy(request, file)
            with simulation_slot(_INSPECTING):
                found = inspect_path(Path(file.name))
        return answer(request, {"file": request.GET.get("file", "")} | found.document())


def _copy(request: Any, file: Any) -> None:
    cap, size = settings.HETSCHED_BINARY_BYTES, 0
    try:
        while piece := request.read(_PIECE):
            size += len(piece)
            if size > cap:
                message = Message("the file is larger than {n} bytes", n=cap)
                raise InputError("BodyTooLarge", message, hint=INSPECT_LOCALLY)
            file.write(piece)
    except UnreadablePostError:
        raise InputError("BodyUnreadable", "the connection closed before the end of the body") from None
    file.flush()


routes = [
    path("isa/", IsaFamiliesView.as_view()),
    path("isa/parse/", IsaParseView.as_view()),
    path("isa/inspect/", IsaInspectionView.as_view()),
]
