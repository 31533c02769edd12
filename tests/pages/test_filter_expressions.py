"""Filter expressions select rows, compare instruction sets by the lattice, and report the position of syntax errors."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db.models import Q
from django.utils import timezone

from web.pages.lists.expressions import FilterField, InvalidExpression, condition, predicate, read
from web.pages.lists.kinds import Age, AnyKind, ChoiceKind, IsaKind, Labels, Model, NumberKind, Quantity, ValueKind


def field(name: str, kind: ValueKind) -> FilterField:
    return FilterField(name, kind, name, get=lambda row: getattr(row, name.replace(".", "_"), None), path=name)


FIELDS = {
    one.name: one
    for one in (
        field("name", ValueKind()), field("state", ChoiceKind("ready", "cordoned")), field("isa", IsaKind()),
        field("cpu", NumberKind(percent=True)), field("free.cpu", Quantity("cpu")), field("pods", NumberKind()),
        field("label", Labels()), field("gpu.model", Model()), field("taint", AnyKind()), field("age", Age()),
    )
}  # fmt: skip


def holds(text: str, **values: Any) -> bool:
    row = SimpleNamespace(**{"label": {}, **values})
    return predicate(read(text, FIELDS), lambda row: row.name)(row)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("isa>=rv64gc", {"isa": "rv64imafdcv_zicsr_zifencei"}, True),  # v in addition to the requested set
        ("isa>=rv64gcv", {"isa": "rv64gc"}, False),
        ("isa>=rva22u64", {"isa": "x86-64-v4"}, False),  # another architecture is never a superset
        ("isa>=x86-64-v2", {"isa": "x86-64-v3+avx512f"}, True),
        ("isa<=x86-64-v2", {"isa": "x86-64-v3"}, False),
        ("isa<=x86-64-v3", {"isa": "x86-64-v2"}, True),
        ("isa=rv64gc", {"isa": "rv64imafdc_zicsr_zifencei"}, True),  # the same set by another name
        ("isa>rv64gc", {"isa": "rv64gc"}, False),
        ("isa>rv64gc", {"isa": "rv64gcv"}, True),
        ("isa~avx512", {"isa": "x86-64-v3+avx512f"}, True),
        ("isa=unknown", {"isa": None}, True),
        ("isa>=rv64gc", {"isa": None}, False),
        ("isa>=rv64gc,x86-64-v1", {"isa": "x86-64-v3"}, True),
        ("state=cordoned", {"state": "cordoned"}, True),
        ("state!=cordoned", {"state": "cordoned"}, False),
        ("-state=cordoned", {"state": "ready"}, True),
        ("state = ready , pods > 2", {"state": "ready", "pods": 3}, False),  # `,` is a token, and part of no name
        ("state = ready pods > 2", {"state": "ready", "pods": 3}, True),
        ("cpu>80%", {"cpu": 0.81}, True),
        ("cpu>80", {"cpu": 0.8}, False),
        ("free.cpu>8", {"free_cpu": 8001}, True),  # 8 CPUs are 8000 millicores
        ("free.cpu>=500m", {"free_cpu": 500}, True),
        ("label:pool=ci", {"label": {"pool": "ci"}}, True),
        ("label:pool", {"label": {"pool": ""}}, True),
        ("-label:pool", {"label": {}}, True),
        ("label:pool!=ci", {"label": {}}, True),  # as Kubernetes' NotIn
        ("label:example.org/pool~c", {"label": {"example.org/pool": "ci"}}, True),
        ("gpu.model=A10", {"gpu_model": ("A100-SXM4-80GB",)}, False),  # A10 never matches A100
        ("gpu.model=A100", {"gpu_model": ("A100-SXM4-80GB",)}, True),
        ("taint=dedicated=*", {"taint": ("dedicated=ci:NoSchedule",)}, True),
        ("name=vf2-*", {"name": "VF2-3"}, True),
        ('name="a b"', {"name": "a b"}, True),
        ("vf 2", {"name": "vf2"}, True),
        ("-vf", {"name": "k1"}, True),
        ("age>5m", {"age": timezone.now() - timedelta(minutes=6)}, True),
        ("age<5m", {"age": timezone.now() - timedelta(minutes=6)}, False),
    ],
)
def test_expression_filters_rows(text: str, values: dict[str, Any], expected: bool) -> None:
    assert holds(text, **{"name": "n", **values}) is expected


@pytest.mark.parametrize(
    ("text", "marked", "instead"),
    [
        ("pods>2 isas>=rv64gc", "isas", "pods>2 isa>=rv64gc"),
        ("isa>=rv64gcx pods>2", "rv64gcx", "isa>=rv64gc pods>2"),
        ("state=cordond", "cordond", "state=cordoned"),
        ("state>ready", ">", "state=ready"),
        ("cpu>much", "much", ""),
        ("free.cpu>8cores", "8cores", "free.cpu>8"),
        ("age>5", "5", "age>5m"),
        ("label=ci", "label=ci", ""),
        ("name=", "name=", ""),
    ],
)
def test_invalid_expression_is_reported_with_position_and_nearest_match(text: str, marked: str, instead: str) -> None:
    with pytest.raises(InvalidExpression) as refused:
        read(text, FIELDS)
    assert (refused.value.problem.marked, refused.value.problem.instead) == (marked, instead)
    assert str(refused.value)


def test_suggested_expression_is_valid() -> None:
    with pytest.raises(InvalidExpression) as refused:
        read("-isas>=rv64gcv name=a", FIELDS)
    assert refused.value.problem.instead == "-isa>=rv64gcv name=a"
    assert len(read(refused.value.problem.instead, FIELDS)) == 2


def test_database_filter_equals_the_expression() -> None:
    found = condition(read("state=ready,cordoned -pods>=3 name=a* word", FIELDS), lambda word: Q(name__icontains=word))
    wanted = (
        (Q(state="ready") | Q(state="cordoned"))
        & ~Q(pods__gte=3)
        & Q(name__text_matches="a*")
        & Q(name__icontains="word")
    )
    assert found == wanted


@pytest.mark.parametrize(
    "text", ["", "   ", '"', "-", "=", ">=", "a=b=c", "((", 'name="', "x" * 1000, "-" * 50, "\\", "%s"]
)
def test_arbitrary_text_is_parsed_or_rejected(text: str) -> None:
    with suppress(InvalidExpression):
        assert holds(text, name="n") in (True, False)


@pytest.mark.parametrize("text", ["age>999999w", "age<999999w", "age>999999d"])
def test_age_before_the_first_date_is_capped(text: str) -> None:
    """Regression: it was an overflow, which returned status 500."""
    assert holds(text, age=timezone.now()) is text.startswith("age<")
    assert condition(read(text, FIELDS), lambda word: Q())
