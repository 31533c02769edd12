"""Image platforms in a pod, and the nodes on which they allow it to run."""

import json
from typing import Any

import pytest

from hetsched.adapters.oci.facts import demand_of, with_facts
from hetsched.contracts.objects.workload import ImageDemand, ImageFacts, PodSpec
from tests.unit.adapters.reading import content, pod_text

RV64GC = "rv64imafdc_zicsr_zifencei"
TWO = "containers: [{name: a, image: one}]\ninitContainers: [{name: b, image: two}]"


def pod(platforms: Any, spec: str = TWO) -> PodSpec:
    annotations = {"hetsched.io/image-platforms": platforms if isinstance(platforms, str) else json.dumps(platforms)}
    return content(pod_text(spec, annotations=annotations)).pending[0]


def images(of: PodSpec) -> ImageDemand | None:
    return of.shape.isa.images if of.shape.isa else None


def test_every_container_and_init_container_narrows() -> None:
    found = pod({"one": ["linux/amd64", "linux/arm64/v8", "linux/riscv64"], "two": ["linux/amd64/v3", "linux/riscv64"]})
    assert images(found) == ImageDemand(
        (("amd64", "x86-64-v3"), ("riscv64", RV64GC)), variants_only=(("amd64", "two"),)
    )


def test_image_without_platforms_restricts_nothing() -> None:
    assert images(pod({"other": ["linux/amd64"]})) is None
    assert images(pod({"one": ["linux/amd64"]})) == ImageDemand((("amd64", "x86-64-v1"),))


def test_unknown_image_has_unknown_platforms() -> None:
    found = pod({"one": ["linux/amd64"], "two": "its registry is not read"})
    assert images(found) == ImageDemand((("amd64", "x86-64-v1"),), unknown=True)
    assert found.image_facts[1] == ImageFacts("two", unknown="its registry is not read")
    assert images(pod({"one": "gone"})) == ImageDemand(None, unknown=True)


def test_empty_platform_list_is_unknown() -> None:
    found = pod({"one": ["linux/amd64"], "two": []})
    assert images(found) == ImageDemand((("amd64", "x86-64-v1"),), unknown=True)
    assert found.image_facts[1] == ImageFacts("two", unknown="the image lists no platform")
    assert images(pod({"one": []})) == ImageDemand(None, unknown=True)
    # A pod stored by a version without reasons.
    assert demand_of((ImageFacts("one"),)) == ImageDemand(None, unknown=True)


def test_attestations_are_no_platforms() -> None:
    found = pod({"one": ["linux/amd64", "unknown/unknown", "linux(x)/arm64"]})
    assert images(found) == ImageDemand((("amd64", "x86-64-v1"),))


def test_images_without_a_common_architecture_leave_none() -> None:
    assert images(pod({"one": ["linux/amd64"], "two": ["linux/arm64"]})) == ImageDemand(())
    assert images(pod({"one": ["windows/amd64"]})) == ImageDemand(())


def test_32_bit_image_runs_on_64_bit_nodes() -> None:
    found = pod({"one": ["linux/386", "linux/arm/v7"]})
    expected = (("386", ""), ("amd64", "x86-64-v1"), ("arm", ""), ("arm64", "armv8.0-a"))
    assert images(found) == ImageDemand(expected)


def test_x86_32_bit_image_is_a_fallback_for_variants() -> None:
    # containerd on amd64 uses the 386 build if it does not support amd64/v3.
    found = pod({"one": ["linux/386", "linux/amd64/v3"]})
    assert images(found) == ImageDemand((("386", ""), ("amd64", "x86-64-v1")))


def test_pods_for_other_operating_systems_are_unrestricted() -> None:
    spec = "nodeSelector: {kubernetes.io/os: windows}\ncontainers: [{name: a, image: one}]"
    assert images(pod({"one": ["windows/amd64"]}, spec)) is None


def test_declared_requirement_is_kept_with_those_of_the_images() -> None:
    annotations = {"hetsched.io/isa": "rv64gcv", "hetsched.io/image-platforms": '{"one": ["linux/riscv64"]}'}
    (found,) = content(pod_text(TWO, annotations=annotations)).pending
    assert found.shape.isa is not None
    assert (found.shape.isa.native, images(found)) == ("rv64gcv", ImageDemand((("riscv64", RV64GC),)))


@pytest.mark.parametrize(
    "wrong", ["", "no", "[]", '{"one": 7}', '{"one": ""}', '{"one": ["linux"]}', '{"one": [7]}', '{"one": {}}']
)
def test_invalid_platform_statement_makes_the_pod_misconfigured(wrong: str) -> None:
    found = pod(wrong)
    assert [problem.code for problem in found.problems] in (["ImagePlatformsInvalid"], ["PlatformMalformed"])
    assert images(found) is None


def test_read_platforms_precede_declared_ones() -> None:
    stated = pod({"one": ["linux/amd64"], "two": ["linux/amd64"]})
    read = with_facts(stated, {"one": ImageFacts("one", ("linux/riscv64", "linux/amd64/v2"))})
    assert images(read) == ImageDemand((("amd64", "x86-64-v2"),), variants_only=(("amd64", "one"),))
    failed = with_facts(stated, {"one": ImageFacts("one", unknown="the registry does not answer")})
    assert failed == stated
    asked = with_facts(pod({}), {"one": ImageFacts("one", unknown="later"), "two": ImageFacts("two", unknown="x")})
    assert [facts.unknown for facts in asked.image_facts] == ["later", "x"]
