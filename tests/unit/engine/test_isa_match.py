"""The isa-match plugin: native, emulated, unknown, and missing features."""

import pytest

from hetsched.contracts.objects.node_report import IsaReport
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import ask, policy_of, scheduler, score

VECTOR = a_node("vector").isa("rv64gcv")
PLAIN = a_node("plain").isa("rv64gc")
X86 = a_node("x86").isa("x86-64-v3")
SILENT = a_node("silent").isa(None)
FLEET = [VECTOR, PLAIN, X86, SILENT]


def test_node_with_every_requested_feature_fits() -> None:
    assert ask("isa-match", a_pod().isa("rv64gc"), FLEET).feasible == ["plain", "vector"]
    assert ask("isa-match", a_pod().isa("rv64gcv"), FLEET).feasible == ["vector"]
    assert ask("isa-match", a_pod().isa("x86-64-v2"), FLEET).feasible == ["x86"]


def test_missing_extensions_and_other_architectures_are_distinguished() -> None:
    answer = ask("isa-match", a_pod().isa("rv64gcv"), FLEET)
    [lacking] = answer.reasons["plain"]
    assert lacking.code == "IsaMissingExtension"
    assert "v" in lacking.missing
    assert answer.codes("x86") == ["IsaArchMismatch"]


def test_unreported_instruction_set_is_unknown_not_a_mismatch() -> None:
    [refusal] = ask("isa-match", a_pod().isa("rv64gc"), FLEET).reasons["silent"]
    assert (refusal.code, refusal.unknown) == ("IsaUnknown", True)


def test_extensions_beyond_a_lower_bound_are_unknown() -> None:
    # An architecture label only means amd64: level 3 may be there, riscv cannot.
    bound = a_node("n").having(isa=IsaReport(native="amd64", complete=False))
    assert ask("isa-match", a_pod().isa("amd64"), [bound]).feasible == ["n"]
    assert ask("isa-match", a_pod().isa("x86-64-v3"), [bound]).codes("n") == ["IsaUnknown"]
    assert ask("isa-match", a_pod().isa("rv64gc"), [bound]).codes("n") == ["IsaArchMismatch"]


@pytest.mark.parametrize(
    ("demand", "offer", "fits"),
    [
        ({"emulated": "rv64gc"}, {"emulated": ("rv64gc",)}, True),
        ({"emulated": "rv64gc"}, {"cross": ("rv64gc",)}, False),
        ({"cross": "rv64gc"}, {"cross": ("rv64gc",)}, True),
        ({"cross": "rv64gc"}, {"emulated": ("rv64gc",)}, False),
        ({"qemu": "rv64gc"}, {"emulated": ("rv64gc",)}, True),
        ({"qemu": "rv64gc"}, {"cross": ("rv64gc",)}, True),
        ({"emulated": "rv64gcv"}, {"emulated": ("rv64gc",)}, False),
        ({}, {"emulated": ("rv64gc",)}, False),  # emulation only where the pod allows it
    ],
)
def test_emulation_is_used_if_the_pod_allows_it(
    demand: dict[str, str], offer: dict[str, tuple[str, ...]], fits: bool
) -> None:
    asking = a_pod().isa("" if demand else "rv64gc", **demand)
    assert ask("isa-match", asking, [a_node("n").isa("x86-64-v3", **offer)]).fits == {"n": fits}


@pytest.mark.parametrize(
    ("demand", "offer", "said"),
    [
        (
            {"native": "rv64gcv", "emulated": "rv64gcv"},
            {"emulated": ("rv64gc",)},
            "the node's emulated instruction sets lack v",
        ),
        ({"native": "rv64gcv", "emulated": "rv64gcv"}, {"emulated": ("arm64", "rv64i", "rv64gc")}, "lack v"),
        ({"native": "rv64gcv", "emulated": "rv64gcv"}, {"emulated": ("arm64",)}, ""),
        # it may not be emulated, so the reason is not the emulator
        ({"native": "rv64gcv"}, {"emulated": ("rv64gc",)}, ""),
    ],
)
def test_insufficient_emulator_is_named_with_the_missing_feature(
    demand: dict[str, str], offer: dict[str, tuple[str, ...]], said: str
) -> None:
    (refusal,) = ask("isa-match", a_pod().isa(**demand), [a_node("n").isa("x86-64-v3", **offer)]).reasons["n"]
    assert refusal.message.startswith("the node runs x86, but the pod requires rv64imafdcv_zicsr_zifencei")
    assert refusal.message.endswith(said or "zicsr_zifencei")


def test_native_precedes_emulated_and_is_recorded() -> None:
    helper = a_node("helper").isa("x86-64-v3", emulated=("rv64gc",))
    asking = a_pod().isa("rv64gc", emulated="rv64gc")
    assert score("isa-match", asking, [helper, PLAIN]) == {"helper": 0, "plain": 100}
    deciding = scheduler([helper, PLAIN], policy=policy_of("isa-match"))
    first = deciding.schedule(asking.build())
    assert first.allocation.isa is not None
    assert (first.node, first.allocation.isa.mode, first.allocation.isa.offered) == ("plain", "native", "rv64gc")
    alone = scheduler([helper], policy=policy_of("isa-match")).schedule(asking.build())
    assert alone.allocation.isa is not None
    assert (alone.allocation.isa.mode, alone.allocation.isa.offered) == ("emulated", "rv64gc")


def test_pod_without_a_requirement_fits_every_node() -> None:
    assert ask("isa-match", a_pod(), FLEET).skipped
    outcome = scheduler([SILENT], policy=policy_of("isa-match")).schedule(a_pod().build())
    assert outcome.allocation.isa is not None
    assert outcome.allocation.isa.mode == "any"


def test_no_score_without_allowed_emulation() -> None:
    assert score("isa-match", a_pod().isa("rv64gc"), FLEET) is None
