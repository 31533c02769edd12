"""The openb trace (Alibaba GPU sharing, 2023): node and pod lists as CSV.

Names in backquotes are columns. A node is named after `sn` and has `cpu_milli` millicores, `memory_mib` MiB, no limit
on pods, architecture amd64 and `gpu` GPUs of type `model`. The facts of its GPUs are read from the accelerator table
(unknown for types G1 to G3). A pod is named `default/<name>`. Its requests and limits are both set from its CPU and
memory columns. It requests `num_gpu` GPUs and `gpu_milli` of each, and `gpu_spec` lists the exact model names. A row
with `num_gpu` 0 requests no GPU, regardless of `gpu_milli`. qos, phase and all times are ignored. The multigpu lists
have only five columns.
Source: the public contract, "openb rows"; hkust-adsl/kubernetes-scheduler-simulator data/csv.
Invariants: file order is kept; equal rows share one `Shape`; one invalid row makes the whole file invalid.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NoReturn

from hetsched.adapters.objects import keys
from hetsched.adapters.objects.fields import is_dns_subdomain
from hetsched.adapters.objects.node_isa import isa_report
from hetsched.adapters.objects.requests import container_demand
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cards import card_from_table
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_report import GpuCard, NodeReport
from hetsched.contracts.objects.workload import GpuDemand, PodSpec, Shape
from hetsched.contracts.units import CPU, MEMORY, MIB, PODS

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
SPEC_COLUMN = "gpu_spec"
MOST_CARDS = 64
_MOST = 2**40

Row = dict[str, str]


def looks_like_openb(data: bytes) -> Literal["nodes", "pods"] | None:
    """Return which list of the trace the header line identifies, or None for any other file."""
    header = data[:256].removeprefix(b"\xef\xbb\xbf").lstrip()
    if header.startswith(b"sn,cpu_milli,"):
        return "nodes"
    return "pods" if header.startswith(b"name,cpu_milli,") else None


def read_nodes(data: bytes, name: str) -> ClusterContent:
    """Read a node list.

    Raises: InputError that names file, line and column.
    """
    labels = {keys.KUBERNETES_ARCH: "amd64"}
    offered = isa_report(labels, {}, [])
    nodes = []
    for line in _lines(data, name, NODE_COLUMNS, "sn"):
        count, model = line.number("gpu", MOST_CARDS), line.text("model")
        if count and not model:
            line.fail("model", "a node with GPUs must have a GPU model")
        nodes.append(
            NodeReport(
                name=line.text("sn"),
                labels=labels,
                allocatable={CPU: line.number("cpu_milli"), MEMORY: line.number("memory_mib") * MIB},
                isa=offered,
                gpus=_cards(model, count),
                source="file",
            )
        )
    return ClusterContent(nodes=tuple(nodes))


@lru_cache(maxsize=256)
def _cards(model: str, count: int) -> tuple[GpuCard, ...]:
    return tuple(card_from_table(index, model) for index in range(count))


def read_pods(data: bytes, name: str) -> ClusterContent:
    """Read a pod list.

    Raises: InputError that names file, line and column.
    """
    shapes: dict[tuple[int, int, GpuDemand | None], Shape] = {}
    pods = []
    for line in _lines(data, name, POD_COLUMNS, "name"):
        demand = (line.number("cpu_milli"), line.number("memory_mib"), _gpu(line))
        shape = shapes.get(demand)
        if shape is None:
            shape = shapes[demand] = _shape(*demand)
        qos = "Guaranteed" if demand[0] and demand[1] else "Burstable" if demand[0] or demand[1] else "BestEffort"
        pods.append(PodSpec(namespace="default", name=line.text("name"), shape=shape, qos=qos))
    return ClusterContent(pending=tuple(pods))


def _shape(cpu_millis: int, memory_mib: int, gpu: GpuDemand | None) -> Shape:
    requests = ((CPU, cpu_millis), (MEMORY, memory_mib * MIB), (PODS, 1))
    stated = dict(requests[:2])
    whole = container_demand(stated, stated, guaranteed=bool(cpu_millis and memory_mib))
    return Shape(
        requests=tuple((resource, amount) for resource, amount in requests if amount),
        nonzero_cpu_millis=cpu_millis,
        nonzero_memory_bytes=memory_mib * MIB,
        gpu=gpu,
        containers=(whole,) if whole else (),
        guaranteed=whole is not None and whole.cpus > 0 and memory_mib > 0,
    )


def _gpu(line: _TraceRow) -> GpuDemand | None:
    count, milli = line.number("num_gpu", MOST_CARDS), line.number("gpu_milli", 1000)
    if not count:
        return None
    if not milli:
        line.fail("gpu_milli", "must be 1 to 1000 for a pod with GPUs")
    if count > 1 and milli < 1000:
        line.fail("gpu_milli", f"only a single GPU can be shared, but {count} are requested")
    spec = line.text(SPEC_COLUMN) if SPEC_COLUMN in line.row else ""
    models = tuple(part.strip() for part in spec.split("|")) if spec else ()
    if not all(models):
        line.fail(SPEC_COLUMN, f"{spec[:80]!r} has an empty model name")
    return GpuDemand(count=count, milli=milli, models=models, exact_models=bool(models))


class _TraceRow:
    """One data row: its cells by column, and its position."""

    __slots__ = ("_name", "_number", "row")

    def __init__(self, name: str, number: int, row: Row) -> None:
        self._name = name
        self._number = number
        self.row = row

    def fail(self, column: str, message: str) -> NoReturn:
        place = f"{self._name}:{self._number} {column}"
        raise InputError("TraceRowInvalid", message, place=place, hint="Correct this row")

    def text(self, column: str) -> str:
        return self.row[column].strip()

    def number(self, column: str, most: int = _MOST) -> int:
        text = self.row[column].strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 15 and int(text) <= most):
            self.fail(column, f"must be a whole number from 0 to {most}, not {text[:80]!r}")
        return int(text)


def _lines(data: bytes, name: str, columns: tuple[str, ...], key: str) -> Iterator[_TraceRow]:
    """Yield the data rows of a list whose header has at least `columns`; values of `key` must be unique names."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "ManifestNotUtf8", f"byte {error.start} is not UTF-8", place=name, hint="Save the file as UTF-8 text"
        ) from None
    if "\0" in text:
        raise InputError("TextHasNul", "the file contains a NUL character", place=name)
    rows = csv.reader(text.splitlines(), strict=True)
    header = [cell.strip() for cell in next(rows, [])]
    missing = [column for column in columns if column not in header]
    if missing:
        raise InputError("TraceHeaderInvalid", f"the header lacks {', '.join(missing)}", place=f"{name}:1")
    if len(set(header)) != len(header):
        raise InputError("TraceHeaderInvalid", "the header contains a column twice", place=f"{name}:1")
    seen: set[str] = set()
    try:
        for row in rows:
            if not row:
                continue
            line = _TraceRow(name, rows.line_num, dict(zip(header, row, strict=False)))
            if len(row) != len(header):
                line.fail(key, f"the row has {len(row)} cells, the header {len(header)}")
            own = line.text(key)
            if not is_dns_subdomain(own):
                line.fail(key, f"must be a lower-case RFC 1123 name, not {own[:80]!r}")
            if own in seen:
                line.fail(key, f"the name {own!r} is used twice")
            seen.add(own)
            yield line
    except csv.Error as error:
        raise InputError(
            "TraceRowInvalid", f"the file is not valid CSV: {error}", place=f"{name}:{rows.line_num}"
        ) from None
    if not seen:
        raise InputError("ManifestEmpty", "the file contains no data rows", place=name)
