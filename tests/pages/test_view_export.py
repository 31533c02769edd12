"""The current view as CSV and JSON: all its rows, the shown columns, and no spreadsheet formulas."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from django.http import StreamingHttpResponse
from django.test import Client

from hetsched.inventory.models import Cluster
from tests.builders import a_node
from tests.situations import a_cluster
from web.pages.lists.exports import _harmless


def streamed(client: Client, address: str) -> tuple[Any, str]:
    answer: Any = client.get(address)
    assert isinstance(answer, StreamingHttpResponse)
    return answer, b"".join(answer.streaming_content).decode()


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_every_row_of_the_view_and_its_columns(viewer: Client, db: None) -> None:
    a_cluster(*(a_node(f"n{number:03}").isa("rv64gc" if number % 2 else "x86-64-v3") for number in range(250)))
    answer, text = streamed(viewer, "/nodes/?q=isa%3E%3Drv64gc&sort=-name&columns=name~isa&format=csv")
    rows = rows_of(text)
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"] == 'attachment; filename="fleet-nodes.csv"'
    assert len(rows) == 125  # half of 250, more than a page of 100
    assert rows[0] == {"name": "n249", "isa": "rv64gc"}


def test_json_has_the_same_with_types(viewer: Client, cluster: Cluster) -> None:
    _answer, text = streamed(viewer, "/nodes/?columns=name~isa~total.gpu~gpu&format=json")
    said = json.loads(text)
    assert (said["list"], said["cluster"], said["query"]) == ("nodes", "fleet", "")
    assert said["items"] == [
        {"name": "n1", "isa": "x86-64-v3+aes", "gpu": 0.0, "total.gpu": 2},
        {"name": "n2", "isa": None, "gpu": None, "total.gpu": 0},
    ]


@pytest.mark.parametrize("address", ["/workloads/", "/decisions/", "/nodes/?q=zzz"])
def test_empty_view_is_exported(viewer: Client, cluster: Cluster, address: str) -> None:
    between = "&" if "?" in address else "?"
    assert len(streamed(viewer, f"{address}{between}format=csv")[1].splitlines()) == 1
    assert json.loads(streamed(viewer, f"{address}{between}format=json")[1])["items"] == []


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\n=1"])
def test_formulas_are_escaped(text: str) -> None:
    assert _harmless(text) == f"'{text}"


@pytest.mark.parametrize("value", ["n1", "rv64gc", -1, 0.5, None, "a=b"])
def test_harmless_values_are_unchanged(value: Any) -> None:
    assert _harmless(value) == value


def test_export_requires_the_right_to_view(client: Client, cluster: Cluster) -> None:
    assert client.get("/nodes/?format=csv").status_code == 302
