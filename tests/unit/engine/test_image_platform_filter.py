"""The isa-match plugin: nodes that can run a platform of every image of a pod."""

from typing import Any

import pytest

from hetsched.contracts.objects.node_report import IsaReport
from hetsched.engine.simulation.what_if import what_if
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import active, ask, cluster, policy_of, scheduler

AMD = a_node("amd").arch("amd64")
ARM = a_node("arm").arch("arm64")
RISCV = a_node("riscv").arch("riscv64")
IBM = a_node("ibm").having(isa=IsaReport(arch="s390x"))
FLEET = [AMD, ARM, RISCV, IBM]
EVERYWHERE = ("linux/amd64", "linux/arm64/v8", "linux/riscv64", "linux/s390x")


@pytest.mark.parametrize(
    ("images", "nodes"),
    [
        ([("linux/amd64",)], ["amd"]),
        ([EVERYWHERE], ["amd", "arm", "ibm", "riscv"]),
        ([("linux/riscv64", "linux/s390x")], ["ibm", "riscv"]),
        ([EVERYWHERE, ("linux/arm64", "linux/amd64")], ["amd", "arm"]),
        ([("linux/386",)], ["amd"]),
        ([("linux/arm/v7",)], ["arm"]),
        ([("linux/amd64",), ("linux/arm64",)], []),
        ([("windows/amd64",)], []),
    ],
)
def test_nodes_must_run_a_platform_of_every_image(images: list[tuple[str, ...]], nodes: list[str]) -> None:
    assert ask("isa-match", a_pod().images(*images), FLEET).feasible == nodes


def test_pod_without_images_is_unrestricted() -> None:
    found = scheduler(FLEET, policy=policy_of("isa-match")).schedule(a_pod().images(("linux/riscv64",)).build())
    assert found.node == "riscv"
    assert found.allocation.isa is not None
    assert found.allocation.isa.mode == "any"


def test_reasons_name_the_offered_and_the_nodes_architecture() -> None:
    pod = a_pod().images(("linux/arm64", "linux/amd64/v3"))
    answer = ask("isa-match", pod, [AMD, RISCV, a_node("old").isa("x86-64-v2")])
    (riscv,), (unknown,), (old,) = (answer.reasons[name] for name in ("riscv", "amd", "old"))
    assert riscv.code == "ImagePlatformMissing"
    assert riscv.message == "the pod's images are built for amd64, arm64, but the node is riscv64"
    assert (unknown.code, unknown.unknown) == ("ImageVariantUnknown", True)
    assert old.code == "ImageVariantMissing"
    assert old.message.startswith("the pod's images require x86-64-v3 on amd64, but the node lacks abm, avx, avx2")
    (none,) = ask("isa-match", a_pod().images(("linux/amd64",), ("linux/arm64",)), [AMD]).reasons["amd"]
    assert none.code == "ImagesDisagree"


@pytest.mark.parametrize(
    ("image", "node", "fits"),
    [
        ("linux/amd64/v2", "x86-64-v3", True),
        ("linux/amd64/v3", "x86-64-v3", True),
        ("linux/amd64/v4", "x86-64-v3", False),
        ("linux/arm64/v8.2", "armv8.4-a", True),
        ("linux/arm64/v9", "armv8.4-a", False),
        ("linux/riscv64", "rv64gcv", True),
        ("linux/riscv64", "rv64i", False),
        ("linux/riscv64", "rv32gc", False),
        ("linux/riscv64/rva22u64", "rv64gc", False),
        ("linux/riscv64/rva22u64", "rva23u64", True),
        ("linux/riscv64/rva99u64", "rva23u64", False),
    ],
)
def test_variants_are_levels_of_the_lattice(image: str, node: str, fits: bool) -> None:
    assert ask("isa-match", a_pod().images((image,)), [a_node("n").isa(node)]).fits == {"n": fits}


def test_requested_isa_and_image_platforms_are_both_required() -> None:
    nodes = [RISCV, a_node("vector").isa("rv64gcv"), AMD]
    assert ask("isa-match", a_pod().isa("rv64gcv").images(EVERYWHERE), nodes).feasible == ["vector"]
    answer = ask("isa-match", a_pod().isa("rv64gcv").images(("linux/amd64",)), nodes)
    assert answer.feasible == []
    assert answer.codes("vector") == ["ImagePlatformMissing"]
    assert answer.codes("amd") == ["IsaArchMismatch"]


@pytest.mark.parametrize(
    ("wish", "images", "fits"),
    [
        ({"emulated": "rv64gc"}, ("linux/riscv64",), True),
        ({"qemu": "rv64gc"}, ("linux/riscv64",), True),
        ({}, ("linux/riscv64",), False),  # emulation only where the pod allows it
        ({"emulated": "rv64gc"}, ("linux/arm64",), False),
        ({"emulated": "rv64gc"}, ("linux/riscv64/rva23u64",), False),
        ({"cross": "rv64gc"}, ("linux/riscv64",), False),  # a toolchain compiles for it, and runs none of it
        ({"cross": "rv64gc"}, ("linux/amd64",), True),
        ({"qemu": "rv64gc"}, ("linux/amd64",), True),  # by the toolchain
        ({"emulated": "rv64gc"}, ("linux/amd64",), False),  # nothing to emulate
    ],
)
def test_emulator_runs_images_if_the_pod_allows_it(wish: dict[str, Any], images: tuple[str, ...], fits: bool) -> None:
    pod = a_pod().isa(**wish).images(images) if wish else a_pod().images(images)
    node = a_node("n").isa("x86-64-v3", emulated=("rv64gcb",), cross=("rv64gcb",))
    assert ask("isa-match", pod, [node]).fits == {"n": fits}


def test_policy_decides_how_an_unreadable_image_counts() -> None:
    pod = a_pod().images(("linux/amd64",), "the registry does not answer")
    assert ask("isa-match", pod, FLEET).feasible == ["amd"]
    answer = ask("isa-match", pod, FLEET, params={"unknownImage": "refuse"})
    assert answer.feasible == []
    (refusal,) = answer.reasons["amd"]
    assert (refusal.code, refusal.unknown) == ("ImageUnknown", True)
    assert ask("isa-match", a_pod().images("unread"), FLEET).feasible == ["amd", "arm", "ibm", "riscv"]


@pytest.mark.parametrize(
    ("images", "params", "text"),
    [
        (
            [("linux/amd64", "linux/arm64")],
            {},
            "a node with architecture amd64 or arm64, as required by the pod's images",
        ),
        ([("linux/amd64",), ("linux/arm64",)], {}, "images that have an architecture in common"),
        (["unread"], {"unknownImage": "refuse"}, "the platforms of the pod's images to become known"),
    ],
)
def test_rejected_pod_has_queueing_hints(images: list[Any], params: dict[str, Any], text: str) -> None:
    state = cluster([RISCV])
    request = state.compile(a_pod().images(*images).build())
    assert active("isa-match", params).instance.waits(request) == text


def test_unknown_node_is_not_ruled_out() -> None:
    silent = a_node("silent").isa(None)
    (refusal,) = ask("isa-match", a_pod().images(("linux/amd64",)), [silent]).reasons["silent"]
    assert (refusal.code, refusal.unknown) == ("ImagePlatformUnknown", True)


def test_image_with_variants_only_is_placed_with_a_warning() -> None:
    policy = policy_of("isa-match")
    warning = "containerd with default settings rejects image-0 on this node: its index has only CPU variants of amd64"

    def warnings(*platforms: str) -> object:
        found = scheduler([a_node("new").isa("x86-64-v4")], policy=policy).schedule(a_pod().images(platforms).build())
        assert found.node == "new"
        assert found.allocation.isa is not None
        return found.allocation.isa.warnings or ()

    assert warnings("linux/amd64/v3") == (warning,)
    assert warnings("linux/amd64/v2", "linux/amd64/v3", "linux/riscv64/rva22u64") == (warning,)
    assert warnings("linux/amd64/v3", "linux/amd64") == ()
    assert warnings("linux/amd64/v1") == ()
    state = cluster([a_node("new").isa("x86-64-v4")])
    document = what_if(state, policy, [a_pod("p").images(("linux/amd64/v3",)).build()], evaluated_at="").document()
    assert document["placements"][0]["isa"]["warnings"] == (warning,)
    plain = what_if(state, policy, [a_pod("p").images(("linux/amd64",)).build()], evaluated_at="").document()
    assert "warnings" not in plain["placements"][0]["isa"]
