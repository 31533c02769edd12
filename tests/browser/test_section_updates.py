"""Sections appear and disappear by themselves, a logged-out reader sees a notice, Chinese pages update in Chinese."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import expect

from .conftest import Visitor


def test_new_section_appears_at_its_place(visitor: Visitor) -> None:
    page = visitor.open("/balance/")
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate("document.getElementById('sources').remove()")
    visitor.submit("comes-by-itself")
    expect(page.locator("#pictures + #sources")).to_be_visible()


def test_signed_out_user_keeps_the_page_with_a_notice(visit: Callable[..., Visitor]) -> None:
    visitor, other = visit(), visit()
    page = visitor.open("/balance/")
    other.open("/")
    expect(page.locator("#live")).to_have_text("live")
    page.context.clear_cookies()
    other.submit("unseen")
    expect(page.locator("#notes .note")).to_contain_text("You are logged out")
    expect(page.locator("#rows tbody tr").first).to_be_visible()


def test_responses_are_in_the_language_of_the_page(visit: Callable[..., Visitor]) -> None:
    page = visit(locale="zh-CN").open("/what-if/?cpu=4096&memory=1Gi&isa=rv64gcv")
    expect(page.locator("#sentence")).to_contain_text("此集群即使为空也无法满足")
    text = page.locator("#result").inner_text()
    assert re.search(r"节点运行 \S+，需要 rv64", text)
    assert not re.search(r"\b(the node|Insufficient|nodes fit)\b", text), text
