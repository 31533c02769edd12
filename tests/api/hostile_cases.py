"""Named hostile requests, which must be rejected or whose texts must be handled as plain text.

A case consists of a name, a method, a path under /api/v1/, a media type and a body. Most cases combine a list of wrong
values with a list of places, so that every place gets every wrong value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.hostile import HOSTILE

JSON = "application/json"


class Case(NamedTuple):
    """One request of an operator, or of a node's agent if the path is one for agents."""

    name: str
    method: str
    address: str
    body: bytes = b""
    kind: str = JSON


def pod(**fields: Any) -> dict[str, Any]:
    """Return a small pod with fields set by dotted path; the last part of a path is used unchanged as a key."""
    made: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "main", "image": "web:1", "resources": {"requests": {"cpu": "1m"}}}]},
    }  # fmt: skip
    for path, value in fields.items():
        where: Any = made
        *steps, last = path.split("__")
        for step in steps:
            where = where[int(step)] if step.isdigit() else where.setdefault(step, {})
        where[last] = value
    return made


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


# Text fields in a manifest, and fields that may contain any text.
_TEXTS = {
    "the pod's name": "metadata__name",
    "the namespace": "metadata__namespace",
    "a label": "metadata__labels",
    "an annotation": "metadata__annotations",
    "the image": "spec__containers__0__image",
    "the container": "spec__containers__0__name",
    "the scheduler": "spec__schedulerName",
    "the class": "spec__priorityClassName",
}


def texts() -> Iterator[Case]:
    """Put every hostile string in every place of a manifest: in maps as a key and as a value."""
    for number, text in enumerate(HOSTILE):
        for place, path in _TEXTS.items():
            value: Any = {text: text, "a": text} if path.endswith(("labels", "annotations")) else text
            yield Case(f"string {number} as {place}", "POST", "workloads/", _json(pod(**{path: value})))


_AMOUNTS = (
    "-1", "1e400", "1E-400", "0x10", "1_000", "١٢", "1,5", "NaN", "Infinity", "-0", "1" * 65, "1Zi", "1 Gi", "", " 1",
    "1\n", "1.1.1", "+", ".", "e5", "9223372036854775808", -1, 1e308, 2**64, True, None, [], {}, "0.0000000001n",
)  # fmt: skip
_RESOURCES = ("cpu", "memory", "pods", "nvidia.com/gpu", "hugepages-2Mi", "hetsched.io/network-mbps")


def amounts() -> Iterator[Case]:
    """Put every wrong amount in every kind of resource."""
    for resource in _RESOURCES:
        for amount in _AMOUNTS:
            body = pod(spec__containers__0__resources={"requests": {resource: amount}})
            yield Case(f"{amount!r:.40} of {resource}", "POST", "what-if/", _json({"manifest": body}))


_ANNOTATIONS = {
    "oks/gpu-number": ("-1", "1.5", "9" * 40, "NaN", "", "0x1", "1;2", "١"),
    "oks/gpu-memory": ("-1", "9" * 40, "1Gi", "NaN", "\ufeff1"),
    "hetsched.io/gpu-milli": ("0", "1001", "-5", "500m", "9" * 30),
    "hetsched.io/gpu-model": ("|", "|||" * 50, "A" * 5000, "\u202e"),
    "hetsched.io/isa": ("RV64" + "Z" * 4000, "rv64i_" * 500, "x86-64-v99", "arm64+" * 300, "RV128", "\0", "+", "_"),
    "hetsched.io/load-profile": ("peaks=99-99", "peaks=", "peaks=-1--1", "idle,busy"),
    "hetsched.io/expected-usage": ("{", "[]", '{"cpu": -1}', '{"cpu": ' + "[" * 500, '{"cpu": 1e999}', '"x"'),
    "hetsched.io/allocation": ("{}", '{"v":1,"cpus":"0-99999999999"}', "null", '{"v":99}', '{"v":1,"gpus":[{}]}'),
    "topology.crane.io/cpu-policy": ("EXCLUSIVE ", "x", "", "none,numa"),
    "topology.crane.io/topology-awareness": ("yes", "1", "True ", ""),
    "hetsched.io/policy": ("../../x", "A", "x" * 300, "\n"),
}


def annotations() -> Iterator[Case]:
    for key, values in _ANNOTATIONS.items():
        for number, value in enumerate(values):
            body = pod(metadata__annotations={key: value})
            yield Case(f"{key} with wrong value {number}", "POST", "what-if/", _json({"manifest": body}))


_SHAPES: dict[str, Any] = {
    "a number": 5, "a list": [], "a text": "x", "an empty object": {}, "true": True, "null": None,
    "a list of null": [None], "a list of lists": [[[]]], "1,000 of them": [{}] * 1000, "a huge number": 10**400,
}  # fmt: skip
_FIELDS = (
    "metadata", "metadata__labels", "metadata__annotations", "metadata__ownerReferences", "spec", "spec__containers",
    "spec__initContainers", "spec__nodeSelector", "spec__affinity", "spec__tolerations", "spec__volumes",
    "spec__topologySpreadConstraints", "spec__overhead", "spec__priority", "spec__resourceClaims",
    "spec__schedulingGates", "spec__containers__0__resources", "spec__containers__0__ports",
)  # fmt: skip


def shapes() -> Iterator[Case]:
    """Replace every field of a pod by a value of another type."""
    for field in _FIELDS:
        for name, value in _SHAPES.items():
            yield Case(f"{field.replace('__', '.')} is {name}", "POST", "workloads/", _json(pod(**{field: value})))


_ADDRESSES = (
    "nodes/{}/", "clusters/{}/", "clusters/{}/export/", "policies/{}/", "policies/{}/versions/", "plugins/{}/",
    "workloads/{}/", "workloads/{}/pods/", "golden-placements/{}/", "policy-plans/{}/", "decisions/{}/",
)  # fmt: skip
_SEGMENTS = {
    "dots": "%2e%2e", "an encoded slash": "a%2fb", "NUL": "a%00b", "half a character": "%ff%fe",
    "a newline": "a%0d%0ab", "a minus": "-1", "a huge number": "9" * 40, "5,000 letters": "a" * 5000,
    "a percent sign": "%25", "a query": "a%3fb", "right to left": "%e2%80%ae", "another script": "%d9%a1",
}  # fmt: skip


def addresses() -> Iterator[Case]:
    for address in _ADDRESSES:
        for name, segment in _SEGMENTS.items():
            yield Case(f"{name} in {address}", "GET", address.format(segment))


_DATES = (
    "0001-01-01", "9999-12-31", "10000-01-01", "2026-02-30", "2026-13-01", "-1", "1e9", "now", "2026-11-22T25:00",
    "2026-11-22T10:00:00+99:99", "٢٠٢٦-١١-٢٢", "2026-11-22\0", "0" * 3000,
)  # fmt: skip
_NUMBERS = ("-1", "0", "1001", "1e3", "0x10", " 5", "٥", "9" * 400, "", "NaN", "5;5", "%00")


def queries() -> Iterator[Case]:
    for date in _DATES:
        for name in ("since", "until"):
            yield Case(f"audit {name} {date!r:.30}", "GET", f"audit/?{name}={_quoted(date)}")
    for number in _NUMBERS:
        for address in ("nodes/", "decisions/", "workloads/", "queue/"):
            yield Case(f"limit {number!r:.30} of {address}", "GET", f"{address}?limit={_quoted(number)}")
    for text_number, text in enumerate(HOSTILE):
        yield Case(f"string {text_number} as a namespace to look for", "GET", f"decisions/?namespace={_quoted(text)}")
        yield Case(f"string {text_number} as an instruction set", "GET", f"isa/parse/?text={_quoted(text)}")


# Number fields in documents: a name, a path, and a body in which X is replaced by the number.
_COUNTS = (
    ("priority", "POST", "workloads/", {"manifest": pod(), "priority": "X"}),
    ("priority", "POST", "what-if/", {"manifest": pod(), "priority": "X"}),
    ("copies", "POST", "what-if/", {"manifest": pod(), "copyNodes": {"n1": "X"}}),
    ("priority", "POST", "submissions/", {"items": [{"manifest": pod()}], "priority": "X"}),
    ("priority of an item", "POST", "submissions/", {"items": [{"manifest": pod(), "priority": "X"}]}),
    ("seconds", "POST", "holds/", {"manifest": pod(), "seconds": "X"}),
    ("mostMoves", "POST", "clusters/lab/advice/", {"mostMoves": "X"}),
    ("mostTries", "POST", "clusters/lab/advice/", {"mostTries": "X"}),
    ("overlapSeconds", "POST", "callback-secret/", {"reason": "a leak", "overlapSeconds": "X"}),
    ("days", "POST", "tokens/", {"name": "ci", "role": "submitter", "days": "X"}),
    ("mostPriority", "POST", "tokens/", {"name": "ci", "role": "submitter", "mostPriority": "X"}),
    ("submitsPerMinute", "POST", "tokens/", {"name": "ci", "role": "submitter", "submitsPerMinute": "X"}),
    ("quota of cpu", "POST", "tokens/", {"name": "ci", "role": "submitter", "quota": {"cpu": "X"}}),
    ("version", "POST", "golden-placements/check/", {"policy": "hetsched", "version": "X"}),
    ("version", "POST", "policies/hetsched/preview/", {"version": "X", "last": 1}),
    ("last", "POST", "policies/hetsched/preview/", {"version": 1, "last": "X"}),
    ("weight", "POST", "policies/hetsched/check/", {"plugins": [{"name": "binpack", "weight": "X"}]}),
    ("seed", "POST", "policies/hetsched/check/", {"plugins": [], "ties": {"by": "random", "seed": "X"}}),
)
_EXTREMES = {
    "2^31": 2**31, "below -2^31": -(2**31) - 1, "2^63": 2**63, "below -2^63": -(2**63) - 1, "2^64": 2**64,
    "10^20, as a float": 1e20, "10^308, as a float": 1e308, "-10^308, as a float": -1e308, "1, as a float": 1.0,
    "-0, as a float": -0.0, "400 digits": 10**400, "a half": 0.5, "true": True,
}  # fmt: skip


def numbers() -> Iterator[Case]:
    """Put every extreme number in every number field of a document."""
    for field, method, address, document in _COUNTS:
        text = json.dumps(document)
        for name, value in _EXTREMES.items():
            body = text.replace('"X"', json.dumps(value)).encode()
            yield Case(f"{name} as {field} of {address}", method, address, body)


_REPORT: dict[str, Any] = {
    "node": "n1", "isa": {"family": "x86", "canonical": "x86-64-v3", "level": "x86-64-v3", "features": ["aes"]},
    "zones": [{"id": 0, "cpus": "0-3", "memoryMiB": 16384, "distances": [10], "hugepages": {"2Mi": 1}}],
    "cpus": [{"id": 0, "core": 0, "socket": 0, "zone": 0, "siblings": "0-1"}],
    "gpus": [
        {"index": 0, "uuid": "GPU-a", "memoryMiB": 40960, "zone": 0, "links": [{"to": 1, "kind": "PIX"}]}
    ],
    "usage": {"amounts": {"cpu": 500}, "capacity": {"hetsched.io/network-mbps": 1000}, "windowSeconds": 15.0},
    "kubelet": {"exclusive": {"u": {"main": "0-1"}}, "devices": {"u": {"main": {"nvidia.com/gpu": ["GPU-a"]}}}},
    "pinned": [{"podUid": "u", "container": "main", "predicted": "0-1", "actual": "0-1"}],
}  # fmt: skip
_REPORTED_VALUES: dict[str, Any] = {
    "10^20, as a float": 1e20, "400 digits": 10**400, "-2^63": -(2**63), "a text": "x" * 500, "no text": "",
    "CPUs without end": "0-99999999999", "null": None, "an empty list": [], "an empty object": {}, "itself twice": ...,
}  # fmt: skip


def reports() -> Iterator[Case]:
    """Replace every part of a node's report by an impossible value; the sender is the node's agent."""
    for path in _parts(_REPORT):
        for name, value in _REPORTED_VALUES.items():
            report = json.loads(json.dumps(_REPORT))
            where: Any = report
            for step in path[:-1]:
                where = where[step]
            where[path[-1]] = [where[path[-1]]] * 2 if value is ... else value
            message = {"node": "n1", "instance": "a", "startedAt": "2026-11-21T10:00:00Z", "sequence": 1, "digest": "d"}
            text = _json({**message, "report": report})
            yield Case(f"{name} as {'.'.join(map(str, path))} of a report", "POST", "agent/reports/", text)


def _parts(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of a document."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*before, key)
        yield from _parts(part, (*before, key))


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


_MADE = (texts, amounts, annotations, shapes, addresses, queries, numbers, reports)
GROUPS = {one.__name__: list(one()) for one in _MADE}
