"""A list shows as much of a long ISA string as fits, in whole features; the node page shows all of it."""

from __future__ import annotations

import pytest

from hetsched.inventory.tiles import shorten_isa
from tests.builders import a_node
from tests.situations import a_cluster

# 80 features like those of the kernel: 9 + 80 x 7 = 569 characters.
LONG = "x86-64-v4" + "".join(f"+feat{number:02}" for number in range(80))


def test_truncation_is_between_features() -> None:
    assert shorten_isa("x86-64-v4+adx+aes", 17) == "x86-64-v4+adx+aes"
    assert shorten_isa("x86-64-v4+adx+aes", 16) == "x86-64-v4+adx…"
    assert shorten_isa("x86-64-v4+adx+avx512_bf16", 20) == "x86-64-v4+adx…"
    assert shorten_isa("rv64gc_zba_zbb", 13) == "rv64gc_zba…"


def test_text_without_features_is_truncated_at_the_limit() -> None:
    assert shorten_isa("a" * 20, 8) == "a" * 8 + "…"


@pytest.mark.django_db
def test_node_page_shows_the_whole_text() -> None:
    node = a_cluster(a_node("n1").isa(LONG)).nodes.get()
    assert (node.isa, node.report.isa.native) == (LONG, LONG)
