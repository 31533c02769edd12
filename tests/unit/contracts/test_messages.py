"""Messages: English text that keeps its template and parameters, also through a column and a JSON document."""

from __future__ import annotations

import ast
import copy
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hetsched.contracts.api.decision import Reason
from hetsched.contracts.documents import encode, to_plain
from hetsched.contracts.errors import Problem
from hetsched.contracts.message import (
    HIDDEN,
    Message,
    as_parts,
    format_pods,
    from_column,
    from_parts,
    joined,
    replace_pod,
    to_column,
)
from hetsched.contracts.objects.warnings import ManifestWarning

ROOT = Path(__file__).resolve().parents[3]
ENCODERS = {"json.encode", "json.Encoder", "to_builtins", "msgpack.encode", "msgpack.Encoder"}
NESTED = Message(
    "{pod} does not fit now: {detail}",
    pod="own/p",
    detail=Message("{n} of {m} nodes fit ({each})", n=0, m=2, each=joined("; ", [Message("the node is cordoned")])),
)


def is_visible(namespace: str) -> bool:
    return namespace == "own"


def test_message_equals_its_english_text() -> None:
    message = Message("Insufficient {resource}: {amount} requested", resource="cpu", amount="900")
    assert message == "Insufficient cpu: 900 requested"
    assert hash(message) == hash("Insufficient cpu: 900 requested")
    assert (message.template, message.params["amount"]) == ("Insufficient {resource}: {amount} requested", "900")


def test_text_without_parameters_may_contain_braces() -> None:
    assert Message("set {name}") == "set {name}"
    assert Message("no {text}", text="{name}") == "no {name}"


@pytest.mark.parametrize(
    "message", [NESTED, format_pods([f"a/{n}" for n in range(7)]), Message("the node is cordoned")]
)
def test_message_round_trips_through_a_column(message: Message) -> None:
    again = from_column(to_column(message))
    assert again == message
    assert to_column(again) == to_column(message)
    assert getattr(again, "params", {}) == message.params


def test_rows_without_parameters_keep_their_text() -> None:
    assert from_column("own/p does not fit now") == "own/p does not fit now"
    assert to_column("own/p does not fit now") == "own/p does not fit now"


def test_earlier_name_of_the_placeholder_detail_is_read() -> None:
    message = Message("{pods} was not evicted: {detail}", pods="hush/x", detail="budget hush/b has no room")
    stored = to_column(message).replace("detail", "said")
    assert to_column(from_column(stored)) == to_column(message)
    assert from_column(stored).redacted(is_visible) == f"{HIDDEN} was not evicted"


def test_text_in_the_form_of_a_stored_message_stays_text() -> None:
    forged = to_column(NESTED)
    assert from_column(to_column(str(forged))) == forged


@pytest.mark.parametrize(
    "text",
    [
        '{"template":"cut off',
        '{"template":"{pod} waits","params":{"n":1}}',
        '{"template":"{pod.x}","params":{"pod":"a/b"}}',
    ],
)
def test_plain_text_in_a_column_is_kept(text: str) -> None:
    assert from_column(text) == text


@pytest.mark.parametrize(
    "row",
    [
        Reason("CpuShort", "resource-fit", 1, NESTED),
        Problem("GpuNumberInvalid", "hetsched.io/gpu-count", NESTED),
        ManifestWarning("FieldUnknown", NESTED, "file.yaml#1 spec.x"),
    ],
    ids=["reason", "problem", "warning"],
)
def test_documents_contain_the_english_text_and_columns_the_parameters(row: Any) -> None:
    assert msgspec.json.decode(encode(row))["message"] == to_plain(row)["message"] == str(NESTED)
    column = encode(row, hook=as_parts)
    again = msgspec.json.decode(column, type=type(row), dec_hook=from_parts)
    assert again == row
    assert again.message.template == NESTED.template
    old = msgspec.json.decode(encode(row), type=type(row), dec_hook=from_parts)
    assert (old.message, old.message.params) == (str(NESTED), {})


def test_copies_keep_the_parameters() -> None:
    for again in (copy.copy(NESTED), copy.deepcopy(NESTED), pickle.loads(pickle.dumps(NESTED))):
        assert (again, again.params) == (NESTED, NESTED.params)


def test_replaced_pod_keeps_the_rest_of_the_message() -> None:
    assert replace_pod(NESTED, "own/q") == str(NESTED).replace("own/p", "own/q")


def test_pod_list_names_the_first_and_counts_the_others() -> None:
    pods = [f"a/{number}" for number in range(7)]
    assert format_pods(pods) == "a/0, a/1, a/2, a/3, a/4 and 2 more"
    assert format_pods(pods[:1]) == "a/0"
    assert format_pods(pods[:2], count=4) == "a/0, a/1 and 2 more"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            Message("{detail}, replacing {pods}", detail=Message("{pod} placed", pod="own/p"), pods="hush/x"),
            f"own/p placed, replacing {HIDDEN}",
        ),
        (
            Message(
                "the pod can be placed on {node} after the deletion of {pods}",
                node="n1",
                pods=format_pods(
                    [Message("{pod} (priority {number})", pod=pod, number=5) for pod in ("hush/x", "own/b")], 2
                ),
            ),
            f"the pod can be placed on n1 after the deletion of {HIDDEN} (priority 5), own/b (priority 5)",
        ),
        (
            Message("{pods} was not evicted: {detail}", pods="hush/x", detail="budget hush/b has no room"),
            f"{HIDDEN} was not evicted",
        ),
        (
            Message("{pods} was not evicted: {detail}", pods="own/x", detail="budget own/b has no room"),
            "own/x was not evicted: budget own/b has no room",
        ),
        (
            Message("held by {pods}", pods=format_pods(["hush/x", "own/c", "hush/y"], 2)),
            f"held by {HIDDEN}, own/c and 1 more",
        ),
        (
            Message("shared with {pods}", pods=Message("kubelet:{pod}", pod="hush/x")),
            f"shared with kubelet:{HIDDEN}",
        ),
        (Message("the taint {taint} is not tolerated", taint="hush/x"), "the taint hush/x is not tolerated"),
    ],
)
def test_only_pods_of_unseen_namespaces_are_redacted(message: Message, shown: str) -> None:
    assert message.redacted(is_visible) == shown
    assert message.redacted(is_visible).redacted(is_visible) == shown
    assert message.redacted(lambda namespace: True) == message


def encoders_without_hook(code: str) -> list[str]:
    """Return the calls of msgspec that encode a document and fail at a message in it."""
    if "msgspec" not in code:
        return []
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    encoders = [call for call in calls if ast.unparse(call.func).removeprefix("msgspec.") in ENCODERS]
    return [ast.unparse(call) for call in encoders if all(keyword.arg != "enc_hook" for keyword in call.keywords)]


def test_every_encoder_accepts_messages() -> None:
    plain = "msgspec.json.encode(x)\nmsgspec.to_builtins(x)\nmsgspec.json.Encoder()\nmsgspec.json.encode(x, enc_hook=y)"
    assert len(encoders_without_hook(plain)) == 3
    modules = [path for name in ("hetsched", "web", "workers") for path in (ROOT / name).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): encoders_without_hook(path.read_text()) for path in modules}
    # A message writes its own parts.
    assert {name for name, calls in found.items() if calls} == {"hetsched/contracts/message.py"}
