"""Links between the GPUs of a node, as a NodeGpu states them."""

from __future__ import annotations

import pytest

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_report import CardLink
from tests.unit.adapters.reading import content


def links(text: str) -> list[tuple[CardLink, ...]]:
    cluster = f"""
        apiVersion: v1
        kind: Node
        metadata: {{name: n1}}
        ---
        apiVersion: hetsched.io/v1alpha1
        kind: NodeGpu
        metadata: {{name: n1}}
        spec:
          cards:
          - {{index: 0, links: [{text}]}}
          - {{index: 1}}
    """
    (node,) = content(cluster).nodes
    return [card.links for card in node.gpus or ()]


def test_link_has_a_kind_and_an_optional_bandwidth() -> None:
    found = links("{to: 2, kind: switch}, {to: 1, kind: nvlink, bandwidthGBs: 40}")
    assert found == [(CardLink(1, "nvlink", 40.0), CardLink(2, "switch")), ()]


def test_cards_without_links_have_none() -> None:
    assert links("") == [(), ()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{kind: nvlink}", "is required"),
        ("{to: 0, kind: nvlink}", "GPU 0 has a link to itself"),
        ("{to: 1, kind: nvlink}, {to: 1, kind: zone}", "GPU 0 has two links to GPU 1"),
        ("{to: 1, kind: string}", "'string' is not an allowed value"),
        ("{to: 1, kind: nvlink, bandwidthGBs: -1}", ""),
    ],
)
def test_invalid_link_rejects_the_file_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        links(text)
    assert message in refused.value.message
    assert "spec.cards[0].links[" in refused.value.place
