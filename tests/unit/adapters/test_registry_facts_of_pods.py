"""Platforms of the images of a cluster's pods, read from a registry on loopback."""

from __future__ import annotations

from hetsched.adapters.look.image_platforms import with_image_platforms
from hetsched.contracts.objects.cluster import ClusterContent
from tests.builders import a_pod
from tests.registry import a_registry


def test_each_image_is_read_once_and_narrows_its_pods() -> None:
    with a_registry() as registry:
        name = registry.image("app/web:1", "linux/amd64", "linux/arm64/v8")
        pods = [a_pod(f"p{number}").having(images=(name,)).build() for number in range(3)]
        other = a_pod("other").having(images=("registry.example.org/app:1", "Not a name")).build()
        registry.asked.clear()
        found = with_image_platforms(
            ClusterContent(running=tuple(pods[:2]), pending=(pods[2], other)), registry.allowed
        )
        assert len(registry.asked) == 1
    for pod in (*found.running, found.pending[0]):
        assert pod.shape.isa is not None
        assert pod.shape.isa.images is not None
        assert pod.shape.isa.images.floors == (("amd64", "x86-64-v1"), ("arm64", "armv8.0-a"))
    assert [bool(facts.unknown) for facts in found.pending[1].image_facts] == [True, True]
    assert "registry.example.org" in found.pending[1].image_facts[0].unknown
