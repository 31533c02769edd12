"""Instruction sets that the platforms of image indexes require of a node."""

import pytest

from hetsched.contracts.errors import InputError
from hetsched.isa import Isa
from hetsched.isa.platforms import image_floors, image_warnings, normalise, pod_floors


def texts(floors: dict[str, Isa | None]) -> dict[str, str | None]:
    return {name: floor.canonical if floor else None for name, floor in floors.items()}


@pytest.mark.parametrize(
    ("written", "platform"),
    [
        ("linux/x86_64", ("linux", "amd64", "")),
        ("linux/x86-64/v2", ("linux", "amd64", "v2")),
        ("Linux/AMD64/v1", ("linux", "amd64", "")),
        ("linux/aarch64", ("linux", "arm64", "")),
        ("linux/arm64/v8", ("linux", "arm64", "")),
        ("linux/arm64/8", ("linux", "arm64", "")),
        ("linux/arm64/v8.0", ("linux", "arm64", "")),
        ("linux/arm64/9", ("linux", "arm64", "v9")),
        ("linux/arm64/v9.0", ("linux", "arm64", "v9")),
        ("linux/i386", ("linux", "386", "")),
        ("linux/armhf", ("linux", "arm", "v7")),
        ("linux/armel", ("linux", "arm", "v6")),
        ("linux/arm", ("linux", "arm", "v7")),
        ("windows(10.0.17763)/amd64", ("windows(10.0.17763)", "amd64", "")),
    ],
)
def test_platforms_are_normalised_like_containerd(written: str, platform: tuple[str, str, str]) -> None:
    assert normalise(written) == platform


@pytest.mark.parametrize(
    "text",
    [
        "", "linux", "linux/", "/amd64", "a/b/c/d", "linux/ amd64", " linux/amd64", "linux/amd64/", "linux/amd64\n",
        "linux/amd 64", "linux/amd64/v3!", "linux/ａｍｄ64", "linux(/amd64", "linux/(x)", "-/amd64",
        "linux/" + "a" * 64,
    ],
)  # fmt: skip
def test_malformed_platform_is_rejected(text: str) -> None:
    with pytest.raises(InputError) as refusal:
        normalise(text)
    assert refusal.value.code == "PlatformMalformed"


@pytest.mark.parametrize(
    "platform", ["linux/arm64/vvv", "linux/arm64/v", "linux/arm64/vv8.2", "linux/amd64/v5", "linux/amd64/v3_avx512f"]
)
def test_unknown_variant_has_no_floor(platform: str) -> None:
    assert list(texts(image_floors([platform])).values()) == [None]


def test_architecture_has_the_lowest_floor_of_its_variants() -> None:
    platforms = ["linux/amd64/v3", "linux/amd64/v2", "linux/arm64/v8", "linux/riscv64", "linux/riscv64/rva22u64"]
    assert texts(image_floors(platforms)) == {
        "amd64": "x86-64-v2",
        "arm64": "armv8.0-a",
        "riscv64": "rv64imafdc_zicsr_zifencei",
    }


@pytest.mark.parametrize(
    ("platform", "floor"),
    [
        ("linux/amd64", "x86-64-v1"),
        ("linux/amd64/v3", "x86-64-v3"),
        ("linux/arm64", "armv8.0-a"),
        ("linux/arm64/v8.2", "armv8.2-a"),
        ("linux/arm64/v9", "armv9.0-a"),
        ("linux/riscv64/rva22u64", "rva22u64"),
        ("linux/s390x", None),
        ("linux/arm/v7", None),
        ("linux/riscv64/rva99u64", None),
    ],
)
def test_platform_variant_has_its_floor(platform: str, floor: str | None) -> None:
    assert list(texts(image_floors([platform])).values()) == [floor]


def test_attestations_and_other_systems_do_not_count() -> None:
    assert image_floors(["unknown/unknown", "linux/unknown", "windows/amd64"]) == {}


def test_pod_may_use_the_common_architectures_at_the_highest_floor() -> None:
    images = [
        image_floors(["linux/amd64", "linux/arm64/v8.7", "linux/riscv64"]),
        image_floors(["linux/amd64/v3", "linux/arm64/v9", "linux/riscv64/rva22u64", "linux/s390x"]),
    ]
    # armv8.7 and armv9.0 are not comparable; a node with both is armv9.2.
    assert texts(pod_floors(images)) == {"amd64": "x86-64-v3", "arm64": "armv9.2-a", "riscv64": "rva22u64"}


def test_no_common_architecture_leaves_nothing() -> None:
    assert pod_floors([image_floors(["linux/amd64"]), image_floors(["linux/arm64"])]) == {}
    assert pod_floors([]) == {}


def test_index_of_variants_only_has_a_warning() -> None:
    assert "amd64" in image_warnings(["linux/amd64/v3"])[0]
    assert "riscv64" in image_warnings(["linux/riscv64/rva22u64"])[0]
    assert image_warnings(["linux/amd64/v3", "linux/amd64", "linux/arm64/v9"]) == []
