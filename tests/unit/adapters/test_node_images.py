"""Images on nodes: read from the status, stored as hashes of names, and compared with the images of pods."""

from __future__ import annotations

import json

import pytest

from hetsched.adapters.anonymising.whole import anonymised
from hetsched.adapters.kubernetes.typed_objects import node_fields
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_images import image_key, image_name, pack_images, unpack_keys
from tests.unit.adapters.reading import content, pod, pod_text

DIGEST = "registry.example.com/web@sha256:" + "0" * 64
NODE = f"""
apiVersion: v1
kind: Node
metadata: {{name: n1}}
status:
  images:
  - {{names: ["{DIGEST}", "registry.example.com/web:1"], sizeBytes: 70000000}}
  - {{names: ["db:2"], sizeBytes: 300}}
  - {{sizeBytes: 5}}
"""
SIZES = {DIGEST: 70000000, "registry.example.com/web:1": 70000000, "db:2": 300}


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("web", "web:latest"),
        ("web:1", "web:1"),
        ("registry:5000/web", "registry:5000/web:latest"),
        ("registry:5000/web:1", "registry:5000/web:1"),
        (DIGEST, DIGEST),
    ],
)
def test_name_of_an_image_has_a_tag_or_a_digest(image: str, name: str) -> None:
    assert image_name(image) == name


def test_images_of_a_node_and_of_a_pod() -> None:
    [node] = content(NODE, workload=False).nodes
    assert node.image_sizes == pack_images(SIZES)
    assert dict(unpack_keys(node.image_sizes)) == {image_key(name): size for name, size in SIZES.items()}
    found = pod(
        """
        containers: [{name: a, image: web}, {name: b, image: db:2}]
        initContainers: [{name: c, image: web:latest}]
        volumes: [{name: v, image: {reference: model}}, {name: w, emptyDir: {}}]
        """
    )
    assert found.shape.images == ("db:2", "model:latest", "web:latest", "web:latest")


def test_export_keeps_the_images() -> None:
    spec = """
        containers: [{name: a, image: web}, {name: b, image: web}, {name: c, image: "db:2"}]
        volumes: [{name: v, image: {reference: model}}]
    """
    read = content(f"{NODE}---\n{pod_text(spec)}")
    again = content(write_cluster(read).decode())
    assert again.nodes == read.nodes
    assert [each.shape.images for each in again.pending] == [("db:2", "model:latest", "web:latest", "web:latest")]


def test_anonymised_export_keeps_only_the_images_of_its_pods() -> None:
    text = f"{NODE}---\n" + pod_text("containers: [{name: a, image: 'db:2'}]")
    hidden = content(write_cluster(anonymised(content(text))).decode())
    [image] = hidden.pending[0].shape.images
    assert "db" not in image
    assert dict(unpack_keys(hidden.nodes[0].image_sizes)) == {image_key(image): 300}


def test_store_keeps_50_images_of_a_node_in_less_than_3_kilobytes() -> None:
    repository = "registry.example.com/team/service-with-a-long-name"
    images = [
        {"names": [f"{repository}-{n}@sha256:{n:064x}", f"{repository}-{n}:v1.{n}"], "sizeBytes": n << 24}
        for n in range(50)
    ]
    body = json.dumps({"metadata": {"name": "n1", "annotations": {"a": "b"}}, "status": {"images": images}}).encode()
    stored = node_fields(body)
    assert len(body) > 9000
    assert len(stored) < 3000
    names = {name: image["sizeBytes"] for image in images for name in image["names"]}
    document = json.dumps({"apiVersion": "v1", "kind": "Node", **json.loads(stored)})
    [node] = content(document, workload=False).nodes
    assert node.image_sizes == pack_images(names)
    assert node.annotations == {"a": "b"}


def test_number_of_names_is_bounded() -> None:
    many = [{"names": [f"image-{n}:1" for n in range(400)]}, {"names": [f"other-{n}:1" for n in range(400)]}]
    text = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"images": many}})
    [node] = content(text, workload=False).nodes
    assert len(list(unpack_keys(node.image_sizes))) == 512


@pytest.mark.parametrize("value", ["x", "AAAA", "é"])
def test_invalid_annotation_is_an_error(value: str) -> None:
    meta = {"name": "n", "annotations": {"hetsched.io/export-image-sizes": value}}
    text = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    with pytest.raises(InputError, match="does not describe images"):
        content(text, workload=False)
