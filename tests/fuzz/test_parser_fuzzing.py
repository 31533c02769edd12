"""Every parser of external text, with arbitrary input: it returns a result or raises its own error type.

HETSCHED_TEST_PARSER_CASES sets the number of texts per parser. They are tokens of the parser's own vocabulary in any
order, or any text; objects are manifests with one part replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.adapters.kubernetes.connections import kubeconfig
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.signatures import sign, verify
from hetsched.contracts.objects.allowance import read_quota
from hetsched.contracts.units import parse_amount, parse_quantity
from hetsched.isa import parse

CASES = int(os.environ.get("HETSCHED_TEST_PARSER_CASES", "150"))
KEY = b"k" * 32
many = settings(max_examples=CASES, suppress_health_check=list(HealthCheck), database=None)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
)


def words(*of: str) -> st.SearchStrategy[str]:
    """Return a strategy of texts from a parser's vocabulary, some with arbitrary text in between."""
    return st.lists(st.sampled_from(of) | st.text(max_size=3), max_size=30).map("".join) | st.text(max_size=200)


YAML = words(
    "apiVersion: v1\n",
    "kind: Pod\n",
    "metadata:\n",
    "  name: x\n",
    "spec: ",
    "{",
    "}",
    "[",
    "]",
    "- ",
    ": ",
    "\n",
    "  ",
    "&a ",
    "*a",
    "!!python/name:os.system ",
    "<<: ",
    "|\n",
    ">-\n",
    "'",
    '"',
    "---\n",
    "...\n",
    "# ",
    "%YAML 1.1\n",
    "\t",
    "null",
    "1e999",
    ".inf",
    "0x1",
    "2026-11-22",
    "? ",
    "\\u0000",
    "\0",
    "\ufeff",
)
KUBECONFIG = words(
    "apiVersion: v1\n",
    "clusters:\n",
    "- name: a\n",
    "  cluster:\n",
    "    server: https://h\n",
    "users:\n",
    "  user:\n",
    "    token: t\n",
    "    exec: {command: x}\n",
    "contexts:\n",
    "  context: {cluster: a, user: a}\n",
    "    tokenFile: /x\n",
    "current-context: a\n",
    "    certificate-authority-data: ",
    "QUJD",
    "\n",
    "    insecure-skip-tls-verify: true\n",
)
TEXTS: dict[str, tuple[Callable[[str], Any], st.SearchStrategy[str]]] = {
    "cpu list": (parse_cpuset, words("0", "-", ",", "1", "99999", " ", "\n", "٣", "+")),
    "quantity": (parse_quantity, words("1", ".", "e", "E", "-", "+", "m", "Ki", "Ei", "n", "9" * 30, "e400")),
    "amount": (lambda text: parse_amount("cpu", text), words("1", ".", "e", "-", "m", "Ki", "9" * 30)),
    "instruction set": (
        parse,
        words("rv64", "RV32", "imafd", "gc", "_zba", "_", "zvl128b", "2p0", "x86-64-v3", "+", "avx2", "arm64", "rva22"),
    ),
    "workload file": (lambda text: parse_workload([("x", text.encode(errors="replace"))]), YAML),
    "cluster file": (lambda text: parse_cluster([("x", text.encode(errors="replace"))]), YAML),
    "trace rows": (
        lambda text: parse_workload([("x.csv", text.encode(errors="replace"))]),
        words(
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n", "p,", "1", ",", "-1", "\n", '"', "A100|V100", "\r"
        ),
    ),
    "kubeconfig": (lambda text: kubeconfig.one_context(kubeconfig.read(text.encode(errors="replace"))), KUBECONFIG),
    "signed allocation": (
        lambda text: verify(text, KEY, uid="u", node="n"),
        words(
            '{"v":1',
            '"sig":"',
            "0" * 64,
            '"',
            ",",
            '"uid":"u"',
            '"node":"n"',
            "}",
            "[",
            '"gpus":[{}]',
            '"epoch":1',
            "NaN",
        ),
    ),
}


@pytest.mark.parametrize("reader", TEXTS)
def test_fuzzed_text_parser(reader: str) -> None:
    read, texts = TEXTS[reader]

    @many
    @given(texts)
    def survives(text: str) -> None:
        with contextlib.suppress(InputError):
            read(text)

    survives()


POD: dict[str, Any] = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "labels": {}, "annotations": {}},
    "spec": {
        "nodeSelector": {"a": "b"}, "tolerations": [{"key": "a"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
                }
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "a", "labelSelector": {"matchLabels": {"a": "b"}}}
                ]
            },
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}, "ports": [{}]}],
    },
}  # fmt: skip
NODE: dict[str, Any] = {
    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"a": "b"}},
    "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}], "unschedulable": False},
    "status": {
        "allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"}, "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    },
}  # fmt: skip


def paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every part of a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [before, *(path for key, part in inner for path in paths(part, (*before, key)))]


def exchanged(value: Any, path: tuple[Any, ...], part: Any) -> Any:
    """Return a document with one part replaced."""
    if not path:
        return part
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = exchanged(value[path[0]], path[1:], part)
    return copy


@pytest.mark.parametrize(("document", "read"), [(POD, parse_workload), (NODE, parse_cluster)], ids=["pod", "node"])
def test_object_with_one_mutated_field(document: Any, read: Callable[..., Any]) -> None:
    @many
    @given(st.sampled_from(paths(document)[1:]), ANYTHING)
    def survives(path: tuple[Any, ...], part: Any) -> None:
        text = json.dumps(exchanged(document, path, part))
        with contextlib.suppress(InputError):
            read([("x", text.encode(errors="surrogatepass"))])

    survives()


@many
@given(st.dictionaries(st.sampled_from(["v", "uid", "node", "epoch", "cpus", "gpus", "zones"]) | st.text(), ANYTHING))
def test_signed_text_is_either_granted_or_rejected(document: dict[str, Any]) -> None:
    document = {"uid": "u", "node": "n", "epoch": 1, **document}
    try:
        signature = sign(document, KEY)
        text = json.dumps({**document, "sig": signature})
    except (ValueError, TypeError):  # text that is not JSON is never signed
        return
    try:
        granted = verify(text, KEY, uid="u", node="n")
    except InputError:
        return
    assert (granted.uid, granted.node) == ("u", "n")


@many
@given(ANYTHING)
def test_quota_is_parsed_or_rejected(given_quota: Any) -> None:
    try:
        kept = read_quota(given_quota)
    except InputError:
        return
    assert read_quota(kept) == kept
