"""Pagination returns every row once, in order, while rows are added."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import POD, Api

LISTS = ["nodes/", "policies/", "plugins/", "policies/hetsched/versions/", "clusters/", "decisions/", "workloads/"]


def walk(caller: Api, address: str, limit: int, meanwhile: Any = None) -> list[Any]:
    items: list[Any] = []
    following: str | None = f"/api/v1/{address}?limit={limit}"
    while following:
        page = caller("GET", following, status=200).json()
        assert len(page["items"]) <= limit
        items += page["items"]
        following = page["next"]
        if meanwhile:
            meanwhile()
    return items


@pytest.mark.parametrize("address", LISTS)
def test_small_pages_make_the_whole_list(operator: Api, decided: str, address: str) -> None:
    whole = operator.get(address, limit=1000)
    assert whole["next"] is None
    assert whole["items"]
    assert walk(operator, address, 1) == whole["items"]


def test_new_rows_do_not_shift_pages(operator: Api, cluster: Any) -> None:
    made = []

    def submit() -> None:
        made.append(f"p{len(made)}")
        operator("POST", "workloads/", POD.replace("web", made[-1]), kind="application/yaml", status=202)

    for _ in range(4):
        submit()
    seen = [row["name"] for row in walk(operator, "workloads/", 2, submit)]
    assert seen == ["p3", "p2", "p1", "p0"]


def test_next_page_keeps_the_filter(operator: Api, cluster: Any) -> None:
    for name in ("a", "b", "c"):
        operator("POST", "workloads/", POD.replace("web", name), kind="application/yaml", status=202)
    assert walk(operator, "workloads/", 1) != []
    page = operator.get("workloads/", limit=1, state="pending")
    assert "state=pending" in page["next"]
    assert operator.get("workloads/", state="placed") == {"items": [], "next": None}


@pytest.mark.parametrize(
    ("address", "query", "names"),
    [
        ("nodes/", {"family": "x86"}, ["n1", "n2"]),
        ("nodes/", {"family": "riscv"}, []),
        ("nodes/", {"pool": "general"}, ["n1"]),
        ("workloads/", {"cluster": "lab", "namespace": "default"}, ["web"]),
        ("workloads/", {"name": "web", "state": "never-fits"}, ["web"]),
    ],
)
def test_lists_are_filtered(operator: Api, decided: str, address: str, query: Any, names: list[str]) -> None:
    assert [row["name"] for row in operator.get(address, **query)["items"]] == names


@pytest.mark.parametrize(
    ("query", "pods"),
    [
        ({"verdict": "placed"}, ["default/web"]),
        ({"verdict": "never-fits"}, ["default/big"]),
        ({"pod": "web"}, ["default/web"]),
        ({"node": "n1"}, ["default/web"]),
        ({"namespace": "other"}, []),
        ({"workload": "w-0"}, []),
    ],
)
def test_decisions_are_filtered(operator: Api, decided: str, query: Any, pods: list[str]) -> None:
    assert [row["pod"] for row in operator.get("decisions/", **query)["items"]] == pods
