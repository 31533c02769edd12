"""The image-locality plugin: nodes with the images of a pod, weighted by the share of nodes that have them."""

from __future__ import annotations

import pytest

from hetsched.contracts.objects.node_images import pack_images
from hetsched.engine.framework.builtin_policies import BUILTIN
from tests.builders import NodeBuilder, a_node, a_pod
from tests.unit.engine.fleet import scheduler, score

MIB = 1024 * 1024


def having(name: str, **sizes: int) -> NodeBuilder:
    return a_node(name).having(image_sizes=pack_images({f"{image}:1": mib * MIB for image, mib in sizes.items()}))


# Expected scores by hand from kube-scheduler's formula (image_locality.go of 1.37): the limits are 23 and 1,000 MiB for
# each image; 600 MiB on one of two nodes count as 300.
@pytest.mark.parametrize(
    ("images", "fleet", "scores"),
    [
        (("web:1",), [having("a", web=600), having("b")], {"a": 28, "b": 0}),  # (300 - 23) / 977
        (("web:1",), [having("a", web=600), having("b", web=600)], {"a": 59, "b": 59}),  # (600 - 23) / 977
        (("web:1",), [having("a", web=40), having("b")], {"a": 0, "b": 0}),  # 20 MiB are below the lower limit
        (("web:1",), [having("a", web=3000), having("b", web=3000)], {"a": 100, "b": 100}),
        (("db:1", "web:1"), [having("a", web=600, db=100), having("b", db=100)], {"a": 19, "b": 3}),  # 377, 77 of 1977
        (("web:1", "web:1"), [having("a", web=600), having("b")], {"a": 29, "b": 0}),  # (600 - 23) / 1977
    ],
)
def test_score(images: tuple[str, ...], fleet: list[NodeBuilder], scores: dict[str, int]) -> None:
    assert score("image-locality", a_pod().shaped(images=images), fleet) == scores


def test_pod_whose_images_are_on_no_node_is_not_scored() -> None:
    assert score("image-locality", a_pod().shaped(images=("other:1",)), [having("a", web=600)]) is None
    assert score("image-locality", a_pod(), [having("a", web=600)]) is None


def test_default_kube_prefers_the_node_with_the_image() -> None:
    fleet = [a_node("a"), having("b", web=900)]
    assert scheduler(fleet).schedule(a_pod().shaped(images=("web:1",)).build()).node == "b"
    assert scheduler(fleet).schedule(a_pod().build()).node == "a"
    assert [name for name, policy in BUILTIN.items() if "image-locality" in {use.name for use in policy.plugins}] == [
        "default-kube"
    ]


def test_new_image_of_a_node_counts_in_later_decisions() -> None:
    deciding = scheduler([a_node("a"), a_node("b")])
    pod = a_pod().shaped(images=("web:1",)).build()
    assert deciding.schedule(pod).node == "a"
    deciding.state.forget(pod.key)
    deciding.state.apply_report(having("b", web=900).build())
    assert deciding.schedule(pod).node == "b"
