"""Each extension belongs to one group, by its purpose."""

from __future__ import annotations

from web.pages.nodes.isa import grouped


def test_extensions_fall_into_one_group_each() -> None:
    groups = dict(grouped("riscv", ["v", "zvkt", "zba", "d", "c", "svpbmt", "xtheadba"]))
    names = [name for members in groups.values() for name in members]
    assert sorted(names) == ["c", "d", "svpbmt", "v", "xtheadba", "zba", "zvkt"]
    assert groups["vector"] == ["v"]
    assert groups["cryptography"] == ["zvkt"]
    assert groups["other extensions"] == ["xtheadba"]
