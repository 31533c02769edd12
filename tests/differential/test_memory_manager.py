"""The model of the static memory manager agrees with the kubelet's own code on random nodes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from hetsched.engine.numa import topology_manager
from hetsched.engine.numa.memory_manager import MemoryManager
from tests import parts
from tests.kube import control_plane

from .kubelet.admissions import Kubelet
from .kubelet.memory import draw, ours, theirs

pytestmark = pytest.mark.needs(control_plane.KUBELET_VERDICTS)
CASES = 1000


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    with Kubelet(parts.require(control_plane.KUBELET_VERDICTS)) as running:
        yield running


def test_random_nodes_have_no_difference(kubelet: Kubelet) -> None:
    reasons: Counter[str] = Counter()
    for seed in range(CASES):
        case = draw(seed)
        predicted = ours(case)
        assert theirs(case, kubelet) == predicted, f"seed {seed}: {json.dumps(case)}"
        reasons.update(reason for reason, _ in predicted)
    assert min(reasons[one] for one in ("", "TopologyAffinityError", "UnexpectedAdmissionError")) > 100, reasons


@pytest.mark.parametrize("bug", ["ignore groups", "prefer every hint"])
def test_planted_bug_is_found(kubelet: Kubelet, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "ignore groups":
        monkeypatch.setattr(MemoryManager, "_usable", lambda *_: True)
    else:
        correct = MemoryManager.hints
        monkeypatch.setattr(
            MemoryManager, "hints", lambda *args: [(mask, True) for mask, _ in correct(*args) or ()] or None
        )
    topology_manager.verdict.cache_clear()
    try:
        assert any(theirs(case, kubelet) != ours(case) for case in map(draw, range(200)))
    finally:
        topology_manager.verdict.cache_clear()
