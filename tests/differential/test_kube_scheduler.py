"""hetsched's filters and preemption agree with kube-scheduler's own code on random clusters."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests import parts
from tests.kube import control_plane

from . import verdicts
from .clusters import draw
from .comparison import INTENDED, differences
from .objects import Object
from .summary import SCHEDULER, compare, minimal
from .verdicts import PLUGINS, KubeScheduler

pytestmark = pytest.mark.needs(control_plane.SCHEDULER_VERDICTS)
CASES = 2000
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kubernetes-differences.md"


@pytest.fixture(scope="module")
def kube_scheduler() -> Iterator[KubeScheduler]:
    with KubeScheduler(parts.require(control_plane.SCHEDULER_VERDICTS)) as running:
        yield running


@pytest.mark.parametrize("first", range(0, CASES, 500))
def test_random_clusters_have_no_unexplained_difference(kube_scheduler: KubeScheduler, first: int) -> None:
    summary = compare(SCHEDULER, kube_scheduler, range(first, first + 500))
    assert summary.pods > 1000
    assert not summary.unexplained, minimal(SCHEDULER, *summary.unexplained[0], kube_scheduler)


def test_page_explains_every_intended_difference() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(INTENDED)


def without(kind: str = "", *, field: str = "") -> Callable[[Sequence[Any]], bytes]:
    """Return a reader's input that lacks all objects of a kind, or a field wherever it occurs."""

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: stripped(each) for key, each in value.items() if key != field}
        return [stripped(each) for each in value] if isinstance(value, list) else value

    return lambda objects: _listed([stripped(each) for each in objects if each["kind"] != kind])


def with_higher_priority(objects: Sequence[Object]) -> bytes:
    """Return a reader's input in which pods without a node have a priority that is higher by 1."""
    changed = copy.deepcopy(list(objects))
    for each in changed:
        if each["kind"] == "Pod" and "nodeName" not in each["spec"]:
            each["spec"]["priority"] += 1
    return _listed(changed)


def _listed(items: Sequence[Object]) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(without(field="minDomains"), id="minDomains is ignored"),
        pytest.param(without("PodDisruptionBudget"), id="disruption budgets are ignored"),
        pytest.param(without(field="hostIP"), id="addresses of host ports are ignored"),
        pytest.param(without(field="namespaceSelector"), id="namespace selectors are ignored"),
        pytest.param(without(field="overhead"), id="overhead is ignored"),
        pytest.param(without(field="preemptionPolicy"), id="preemption policies are ignored"),
        pytest.param(with_higher_priority, id="pods of equal priority are evicted"),
        pytest.param(without(field="deletionTimestamp"), id="terminating pods count as running"),
        pytest.param(without("CSINode"), id="attach limits are ignored"),
        pytest.param(without(field="restartPolicyRules"), id="features for restart rules are ignored"),
        pytest.param(without(field="hostUsers"), id="features for user namespaces are ignored"),
        pytest.param(without(field="schedulingGates"), id="scheduling gates are ignored"),
        pytest.param(without(field="preferredDuringSchedulingIgnoredDuringExecution"), id="preferences are ignored"),
    ],
)
def test_planted_bug_is_found(
    kube_scheduler: KubeScheduler, bug: Callable[[Sequence[Any]], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "as_list", bug)
    assert any(
        compare(SCHEDULER, kube_scheduler, range(first, first + 50)).unexplained for first in range(0, CASES, 50)
    )


@pytest.mark.parametrize("plugin", sorted(PLUGINS.values()))
def test_each_score_is_compared(kube_scheduler: KubeScheduler, plugin: str) -> None:
    cases = map(draw, range(CASES))
    assert any(plugin in verdict.scores for case in cases for verdict in kube_scheduler.judge(case))


def test_minimal_case_keeps_only_what_differs(kube_scheduler: KubeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "as_list", without(field="overhead"))
    found = next(
        (case, difference)
        for case in map(draw, range(CASES))
        for difference in differences(case, kube_scheduler)
        if not difference.name and difference.kind == "node"
    )
    text = minimal(SCHEDULER, *found, kube_scheduler)
    assert "overhead:" in text
    assert text.count("kind: Node\n") == 1
    assert "podAntiAffinity" not in text


def test_rejected_case_is_an_error(kube_scheduler: KubeScheduler) -> None:
    case = msgspec.structs.replace(draw(1), objects=[{"kind": "Unknown", "apiVersion": "v1"}])
    with pytest.raises(RuntimeError, match="no kind"):
        kube_scheduler.judge(case)
