"""Redaction of pod names of other namespaces in live messages to limited tokens.

Texts of the caller are echoed.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async

from hetsched.contracts.message import HIDDEN, Message, to_column, verbatim
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM
from hetsched.journal.publish import message
from hetsched.placement.actions import submit
from hetsched.placement.models import Pod
from tests.builders import a_pod
from web.live import socket_reads

pytestmark = pytest.mark.django_db(transaction=True)
SAID = Message("Preempted by {pods}", pods="hush/x")


def test_deltas_and_snapshots_are_redacted() -> None:
    said = {"team/a": SAID, "team/b": verbatim("hush/x"), "team/d": "n1 was filled by hush/x"}
    pods = {pod: {"message": to_column(message)} for pod, message in said.items()}
    data = {"name": "hush/x", "pods": {**pods, "team/c": None}}
    sent = message("workload:w-1", 3, data)
    shown = msgspec.json.decode(socket_reads.redacted("workload:w-1", sent, frozenset({"team"})))
    assert shown["data"]["pods"]["team/a"]["message"] == f"Preempted by {HIDDEN}"
    assert shown["data"]["pods"]["team/b"]["message"] == "hush/x"
    assert shown["data"]["pods"]["team/d"]["message"] == HIDDEN
    assert (shown["data"]["name"], shown["revision"], shown["data"]["pods"]["team/c"]) == ("hush/x", 3, None)
    assert socket_reads.redacted("cluster:lab", sent, frozenset({"team"})) == sent


async def test_limited_socket_does_not_see_its_preemptor(viewers: Any, token: Any, cluster: Cluster) -> None:
    def submitted() -> str:
        submit(cluster, [a_pod("x", "hush").build()], actor=SYSTEM)
        own = submit(cluster, [a_pod("p", "team").build()], actor=SYSTEM).workload_id
        Pod.objects.filter(workload=own).update(message=SAID)
        return own

    topic = f"workload:{await sync_to_async(submitted)()}"
    said = {}
    for namespaces in ((), ("team",)):
        viewer = viewers(token=await sync_to_async(token)("viewer", *namespaces))
        assert await viewer.connect()
        await viewer.listen(topic)
        said[namespaces] = viewer.documents[topic]["pods"]["team/p"]["message"]
        await viewer.send("subscribe", "workload:hush/x")
        assert "hush/x" in (await viewer.receive())["data"]["detail"]
    assert said == {(): SAID, ("team",): f"Preempted by {HIDDEN}"}
