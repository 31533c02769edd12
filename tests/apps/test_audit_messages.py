"""Messages in the audit trail keep their template and parameters, in reasons and in details."""

from __future__ import annotations

import pytest
from django.utils import translation

from hetsched.contracts.message import Message, verbatim
from hetsched.journal.audit import details_of, record
from hetsched.journal.models import AuditEntry
from web.translation import translate

pytestmark = pytest.mark.django_db

REASON = Message(
    "{text} (plan {name}: {detail})", text="cheaper", name="night", detail=Message("at {time}", time="22:00")
)
GOT = Message("{detail} (policy {name})", detail=Message("the node is cordoned"), name="spread")


def read_back(**values: object) -> AuditEntry:
    entry = record(actor="ada", action="policy.activate", obj=("policy", "spread"), **values)  # type: ignore[arg-type]
    return AuditEntry.objects.get(pk=entry.pk)


def test_reason_is_translated_from_its_parameters() -> None:
    entry = read_back(reason=REASON)
    assert entry.reason == "cheaper (plan night: at 22:00)"
    with translation.override("zh-hans"):
        assert translate(entry.reason) == "cheaper（计划 night：于 22:00）"


def test_detail_is_translated_from_its_parameters() -> None:
    details = details_of(read_back(details={"got": GOT, "expected": verbatim("the node is cordoned"), "version": 2}))
    assert details == {"got": str(GOT), "expected": "the node is cordoned", "version": 2}
    with translation.override("zh-hans"):
        shown = [translate(details[name]) for name in ("got", "expected")]
    assert shown == ["节点已封锁（策略 spread）", "the node is cordoned"]


@pytest.mark.parametrize(
    "value",
    [
        {"template": "{x}", "params": {}},
        {"template": "a", "params": "b"},
        {"template": 1, "params": {}},
        {"template": "{x.y}", "params": {"x": "a"}},
        {"template": "{", "params": {"x": "a"}},
    ],
)
def test_detail_in_the_form_of_a_message_is_kept(value: dict[str, object]) -> None:
    assert details_of(read_back(details={"before": value})) == {"before": value}


def test_user_reason_in_the_form_of_a_message_is_kept() -> None:
    forged = '{"template":"{pod} placed","params":{"pod":"a/b"}}'
    assert read_back(reason=forged).reason == forged
