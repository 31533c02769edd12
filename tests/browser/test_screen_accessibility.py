"""Accessibility of every page: axe-core, width, requests, console errors and content security policy.

Each page is opened once and checked in the light theme, then in the dark one for colours, then at smaller widths. It
has no serious or critical violation, is never wider than the window, and makes no request outside the machine.
"""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

from tests.browser.conftest import Visitor
from tests.browser.screens import addresses

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(900)]

GRAVE = ("serious", "critical")
WIDTHS = (1440, 1024, 390)
WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}


def violations(page: Page, rules: dict[str, Any] | None = None) -> list[str]:
    """Return serious and critical violations of axe-core, with the elements."""
    options = {"resultTypes": ["violations"], **(rules or {})}
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found: list[dict[str, Any]] = page.evaluate("async (options) => (await axe.run(options)).violations", options)
    return [
        f"{item['id']}: {' | '.join(node['html'][:160] for node in item['nodes'][:4])}"
        for item in found
        if item["impact"] in GRAVE
    ]


def test_screens_pass_accessibility_checks(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.submit("screens-placed")
    visitor.submit("screens-refused", nodeSelector={"disk": "none-has-it"})
    visitor.decision_of("screens-placed")
    visitor.decision_of("screens-refused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    problems: dict[str, list[str]] = {}
    for name, address in addresses(visitor.console, page).items():
        page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        page.emulate_media(color_scheme="light")
        answer = page.goto(f"{visitor.console.url}{address}", wait_until="networkidle")
        assert answer is not None
        if answer.status != 200:
            problems[name] = [f"answers {answer.status}"]
            continue
        found = violations(page)
        page.emulate_media(color_scheme="dark")
        found += [f"dark: {violation}" for violation in violations(page, COLOURS)]
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 844})
            wider = page.evaluate(WIDER)
            found += [f"{wider} px wider than {width}"] if wider > 0 else []
        page.evaluate(FRAMES)  # boxes that scroll at this width become tab stops
        found += [f"{WIDTHS[-1]} px: {violation}" for violation in violations(page)]
        if found:
            problems[name] = found
    foreign = {url for url in asked if not url.startswith((visitor.console.url, "data:", "blob:"))}
    assert (problems, foreign) == ({}, set())
