"""Instruction sets that QEMU user mode through binfmt_misc adds to a node."""

import pytest

from hetsched.agent.isa.emulation import offer_from_binfmt
from hetsched.contracts.errors import InputError


def entry(*, state: str = "enabled", flags: str = "OCF", machine: str = "f300", width: str = "02") -> str:
    magic = f"7f454c46{width}010100000000000000000002 00{machine}".replace(" ", "")
    return (
        f"{state}\ninterpreter /usr/libexec/qemu-binfmt/riscv64-binfmt-P\nflags: {flags}\noffset 0\n"
        f"magic {magic}\nmask ffffffffffffff00fffffffffffffffffeffffff\n"
    )


def test_enabled_entry_offers_the_default_model() -> None:
    offer = offer_from_binfmt(entry(), enabled=True, version="7.2.0")
    assert offer is not None
    assert {"zba", "zbc", "d", "zicntr"} <= offer.isa.extensions
    assert offer.isa.extensions.isdisjoint({"v", "zfh", "zfa", "zicond", "zicbom", "zicboz", "zawrs", "zk", "zcb"})
    assert offer.version == "7.2.0"


def test_configured_model_replaces_the_default() -> None:
    offer = offer_from_binfmt(entry(), enabled=True, model="rv64gcv")
    assert offer is not None
    assert "v" in offer.isa.extensions


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        (entry(), False),
        (entry(state="disabled"), True),
        # Without F the interpreter would have to exist in every container.
        (entry(flags="OC"), True),
        (entry(width="01"), True),
        (entry(machine="2800"), True),
    ],
)
def test_entry_without_the_fix_flag_offers_nothing(text: str, enabled: bool) -> None:
    assert offer_from_binfmt(text, enabled=enabled) is None


@pytest.mark.parametrize("text", ["", "perhaps\n", entry().replace("offset 0", "offset x"), "enabled\nmagic zz\n"])
def test_malformed_binfmt_entry_is_rejected(text: str) -> None:
    with pytest.raises(InputError) as refusal:
        offer_from_binfmt(text, enabled=True)
    assert refusal.value.code == "BinfmtMalformed"
