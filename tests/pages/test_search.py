"""Search returns pages, nodes, pods, decisions, extensions, policies and clusters, as a page and as JSON."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from hetsched.inventory.models import Cluster
from tests.builders import a_node
from tests.situations import a_cluster
from web.pages.search import extensions, find


def groups(client: Client, query: str) -> dict[str, list[dict[str, Any]]]:
    answer = client.get("/search/", {"q": query, "format": "json"}).json()
    return {group["label"]: group["hits"] for group in answer["groups"]}


def test_nodes_and_places_are_found_by_name(viewer: Client, cluster: Cluster) -> None:
    assert [hit["url"] for hit in groups(viewer, "n1")["Nodes"]] == ["/nodes/n1/"]
    assert [hit["title"] for hit in groups(viewer, "what")["Pages"]] == ["What-if"]
    assert "fleet" in {hit["title"] for hit in groups(viewer, "fleet")["Clusters"]}


def test_shortened_isa_of_a_node_is_marked(viewer: Client, db: None) -> None:
    a_cluster(a_node("long").isa("rv64imafdcv_zicbom_zicboz_zicntr_zicond_zicsr"), a_node("short").isa("rv64gc"))
    assert [hit["note"].endswith("…") for hit in groups(viewer, "long")["Nodes"]] == [True]
    assert [hit["note"].endswith("rv64gc") for hit in groups(viewer, "short")["Nodes"]] == [True]


def test_extension_links_to_its_nodes(viewer: Client, cluster: Cluster) -> None:
    label = "Extensions (links to the nodes that have the extension)"
    hit = next(hit for hit in groups(viewer, "avx2")[label] if hit["title"] == "avx2")
    page = viewer.get(hit["url"]).content.decode()
    assert ">n1</a>" in page  # x86-64-v3 implies AVX2
    assert ">n2</a>" not in page
    assert [extension.name for extension in find("vector aes", 3)] == ["zvkned"]  # by its purpose


def test_empty_query_lists_the_places(viewer: Client, cluster: Cluster) -> None:
    found = groups(viewer, "")
    assert list(found) == ["Pages"]
    assert len(found["Pages"]) > 6


@pytest.mark.parametrize("query", ["zzzz", "<script>", "'; --", "w-", "9" * 40, "%", "a/b", "\x00"])
def test_any_text_has_an_answer(viewer: Client, cluster: Cluster, query: str) -> None:
    answer = viewer.get("/search/", {"q": query})
    assert answer.status_code == 200
    assert "<script>alert" not in answer.content.decode()


def test_all_three_families_have_extensions() -> None:
    assert {extension.family for extension in extensions()} == {"RISC-V", "x86", "Arm"}
    assert {"v", "zba", "rva22u64", "avx512f", "sve", "x86-64-v3", "armv8.2-a"} <= {
        extension.name for extension in extensions()
    }
