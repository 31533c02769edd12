"""Redaction of documents for a reader limited to namespaces, without a database."""

from __future__ import annotations

import pytest

from hetsched.contracts.api.decision import Evicted, Reason
from hetsched.contracts.message import HIDDEN, Message
from hetsched.placement.queries.decision_check import DecisionDifference
from hetsched.placement.queries.redaction import UNLIMITED, Redaction, redact_if_named

WEB = Redaction(frozenset({"web"}))


@pytest.mark.parametrize(
    "text",
    [
        "web/a placed on n1, replacing other/b",
        "Preempted by other/b: exit code 1",
        "CPU 1 shares a core with CPU 5 of kubelet:other/b, which is idle",
        "n1 was filled by web/c, other/b before the pod was bound",
        "other/b stays: budget other/c has no room",
        "(other/b)",
    ],
)
def test_text_without_parameters_that_names_an_unseen_pod_is_hidden(text: str) -> None:
    assert WEB.summary(text) == WEB.message(text) == HIDDEN
    assert WEB.reason(Reason("Any", "any", 1, Message(text))).message == HIDDEN
    assert UNLIMITED.summary(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "the annotation hetsched.io/gpu is not known",
        "web/a placed on n1, replacing web/b",
        "Insufficient nvidia.com/gpu: 2 requested",
        "what docker.io/library/nginx is built for is not known",
        "read https://docs.example/web/pods",
        "no such file: /var/lib/kubelet/config",
        "deleted in the cluster",
        "",
    ],
)
def test_text_without_pod_names_is_unchanged(text: str) -> None:
    assert WEB.message(text) == text


def test_redaction_depends_only_on_namespaces() -> None:
    asked: list[str] = []
    redact_if_named("web/a, other/b and 1 more", lambda namespace: not asked.append(namespace))
    assert asked == ["web", "other"]


def test_parameters_with_text_of_the_caller_stay() -> None:
    echo = Message("the node does not match {text}", text="other/b=true")
    assert WEB.reason(Reason("NodeAffinity", "node-affinity", 1, echo)).message == echo


def test_differences_of_a_repeated_decision_are_redacted_by_parameters() -> None:
    message = Message("{pods} was not evicted: {detail}", pods="other/b", detail="budget other/c has no room")
    difference = DecisionDifference(Message("{name}: {detail}", name="preemption", detail=message), "0", "1")
    assert WEB._redacted(difference.what) == f"preemption: {HIDDEN} was not evicted"
    assert difference.what == "preemption: other/b was not evicted: budget other/c has no room"


def test_hidden_victim_hides_its_budget() -> None:
    evicted = (Evicted("other/x", "n", 3, "other/budget"), Evicted("web/y", "n", 3, "web/budget"))
    assert WEB.evictions(evicted) == (Evicted(HIDDEN, "n", 3, HIDDEN), evicted[1])
    assert UNLIMITED.evictions(evicted) == evicted
