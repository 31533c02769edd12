"""Concurrent writes of agent messages and of other node facts keep both changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from msgspec.structs import replace

from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_message import digest_of
from hetsched.contracts.messages.agent_report import AgentReport, MachineIsa, MachineUsage
from hetsched.contracts.times import rfc3339
from hetsched.inventory import agent_messages, facts
from hetsched.inventory.agent_messages import receive
from hetsched.inventory.fact_review import override
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.models.node_facts import NodeFacts
from tests.api.test_agent_report_endpoint import message
from tests.builders import a_node
from tests.situations import ALICE, a_cluster

pytestmark = pytest.mark.django_db
REPORT = AgentReport("n1", MachineIsa("x86", "x86-64-v3"), (), (), (), agent="1.2")


@pytest.fixture
def cluster(settings: Any) -> Cluster:
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    made = a_cluster(a_node("n1"))
    receive(made, message(REPORT))
    return made


def test_message_during_an_override_review_is_kept(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real, now = facts._review, timezone.now()
    usage = MachineUsage({"cpu": 500}, observed_at=rfc3339(now))

    def reviewed(*arguments: Any, **named: Any) -> Any:
        # a concurrent message in another process
        receive(cluster, message(None, sequence=2, digest=digest_of(REPORT), usage=usage))
        return real(*arguments, **named)

    monkeypatch.setattr(facts, "_review", reviewed)
    until = rfc3339(now + timedelta(hours=1))
    override(cluster, "n1", "allocatable.cpu", "2", until, actor=ALICE, reason="a test")
    row = NodeFacts.objects.get()
    assert (row.sequence, row.usage, row.usage_taken) == (2, usage, False)
    assert [item.value for item in row.overrides] == ["2"]


def test_collected_fact_during_a_message_is_kept(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real = agent_messages._sample

    def sample(*arguments: Any) -> Any:
        # a concurrent write of a collector, after the row was read for the message
        said = NodeFacts.objects.get().claims
        NodeFacts.objects.update(claims={**said, "gpu": said["isa"]})
        return real(*arguments)

    monkeypatch.setattr(agent_messages, "_sample", sample)
    receive(cluster, message(None, sequence=2, digest=digest_of(REPORT)))
    row = NodeFacts.objects.get()
    assert (row.sequence, "gpu" in row.claims) == (2, True)


@pytest.mark.parametrize("isa", ["x86-64-v3", "x86-64-v2"], ids=["confirmation", "changed facts"])
def test_delayed_message_does_not_replace_a_later_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    """An agent whose message is not answered in time sends the next one, while the first may still wait for a lock."""
    later = replace(REPORT, isa=MachineIsa("x86", "x86-64-v4"))
    real = agent_messages.write_transaction

    @contextmanager
    def delayed() -> Iterator[None]:
        monkeypatch.setattr(agent_messages, "write_transaction", real)
        receive(cluster, message(later, sequence=3))
        with real():
            yield

    monkeypatch.setattr(agent_messages, "write_transaction", delayed)
    with pytest.raises(InputError) as refused:
        receive(cluster, message(replace(REPORT, isa=MachineIsa("x86", isa)), sequence=2))
    assert refused.value.code == "ReportOutOfOrder"
    row = NodeFacts.objects.get()
    assert row.reported is not None
    assert (row.sequence, row.reported.isa, row.digest) == (3, later.isa, digest_of(later))
    assert Node.objects.get().report.isa.native == "x86-64-v4"
