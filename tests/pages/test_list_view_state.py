"""Filter, order and columns are in the address; a choice of columns also stays in the browser."""

from __future__ import annotations

import json
import re

from django.test import Client

from hetsched.inventory.models import Cluster


def heads(page: str) -> list[str]:
    return re.findall(r"<th scope=\"col\"[^>]*>(?:<a[^>]*>)?([^<]+)", page)


def test_columns_are_chosen_in_the_address_and_stored_in_the_browser(viewer: Client, cluster: Cluster) -> None:
    assert heads(viewer.get("/nodes/?columns=name~free.cpu").content.decode()) == ["Node", "Free CPUs"]
    assert heads(viewer.get("/nodes/").content.decode()) == ["Node", "Free CPUs"]
    assert len(heads(viewer.get("/workloads/").content.decode())) != 2
    # A form without a script sends each column by itself; the default ones clear the stored choice.
    usual = "&".join(f"column={name}" for name in ("name", "state", "pool", "isa", "cpu", "memory", "gpu", "pods"))
    viewer.get(f"/nodes/?{usual}")
    assert len(heads(viewer.get("/nodes/").content.decode())) == 8


def test_unknown_column_changes_nothing(viewer: Client, cluster: Cluster) -> None:
    for wrong in ("columns=zzz", "sort=zzz", "sort=-", "format=exe", "columns=" + "~" * 3000):
        assert len(heads(viewer.get(f"/nodes/?{wrong}").content.decode())) == 8


def test_sort_links_keep_filter_and_columns(viewer: Client, cluster: Cluster) -> None:
    page = viewer.get("/nodes/?q=isa%3E%3Dx86-64-v2&columns=name~pods").content.decode()
    assert 'href="?q=isa%3E%3Dx86-64-v2&amp;sort=-pods&amp;columns=name~pods"' in page
    assert ">n1</a>" in page
    assert ">n2</a>" not in page  # its ISA is not reported


def test_invalid_filter_shows_its_position_and_a_suggestion(viewer: Client, cluster: Cluster) -> None:
    page = viewer.get("/nodes/?q=isas%3E%3Drv64gc").content.decode()
    assert "<mark>isas</mark>&gt;=rv64gc" in page
    assert 'href="?q=isa%3E%3Drv64gc"' in page
    assert ">n1</a>" not in page


def test_values_that_only_the_data_knows_are_suggested(viewer: Client, cluster: Cluster) -> None:
    def values(name: str) -> list[str]:
        found: list[str] = json.loads(viewer.get(f"/nodes/?values={name}").content)["values"]
        return found

    assert values("isa") == ["x86-64-v3+aes"]
    assert "kubernetes.io/arch" in values("label")
    assert values("label:kubernetes.io/arch") == ["amd64"]
    assert values("zzz") == []
    for address in ("/workloads/", "/decisions/"):
        for name in ("namespace", "node", "code", "zzz"):
            assert viewer.get(f"{address}?values={name}").status_code == 200


def test_every_field_of_every_list_can_be_filtered(viewer: Client, cluster: Cluster) -> None:
    asked = {
        "/nodes/": "name=n* state=ready pool~a arch=x86 isa>=x86-64-v1 cpu<1 gpu<1 free.cpu>0 free.memory>1Mi "
        "free.gpu>0 total.cpu>0 total.memory>1 total.gpu>0 gpu.model!=zzz gpu.memory!=1 zones>=0 pods>=0 label:a!=b "
        "taint!=x doubtful=no reported<1w",
        "/workloads/": "name=a* namespace=ci state=running node=n1 pool=p policy=x gang=g code=Isa* priority>=0 "
        "attempts>0 age<1h tried<1h default/x word",
        "/decisions/": "name=a* namespace=ci verdict=placed node=n1 policy=x version>0 code=Isa* score>0 age<1h "
        "snapshot=a* default/x word",
    }
    for address, query in asked.items():
        answer = viewer.get(address, {"q": query})
        assert answer.status_code == 200
        assert "filter-problem" not in answer.content.decode(), address
