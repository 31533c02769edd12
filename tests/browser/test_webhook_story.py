"""A user creates a webhook, copies its secret, tests it, and redelivers rejected deliveries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.recording_server import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as listening:
        yield listening


def test_webhook_is_created_tried_and_redelivered(visit: Callable[..., Any], receiver: Receiver) -> None:
    visitor = visit()
    page = visitor.open("/webhooks/")
    page.get_by_role("button", name="Add webhook…").click()
    dialog = page.locator("dialog#act")
    dialog.get_by_label("Name (purpose)").fill("pipeline")
    dialog.get_by_label("Address").fill(receiver.url)
    dialog.get_by_label("States (empty: all)").fill("failed, not-now")
    dialog.get_by_label("Reason").fill("tell the pipeline")
    dialog.get_by_role("button", name="Create").click()
    secret = page.locator("#plaintext")
    expect(secret).to_be_visible()
    assert secret.input_value().startswith("whsec_")
    page.get_by_role("link", name="Close").click()
    expect(page.locator("#hooks")).to_contain_text("not now")
    assert "whsec_" not in page.content()

    receiver.status = 410  # no server listens, so it is given up immediately
    page.get_by_role("button", name="Test…").click()
    dialog.get_by_role("button", name="Send test", exact=True).click()
    expect(page.locator("#rows")).to_contain_text("webhook.test")
    _until(page, "#hooks", "the endpoint responds with 410 Gone")
    _shot(page, "webhooks")

    receiver.status = 204
    page.get_by_role("button", name="Resume…").click()
    dialog.get_by_label("Reason").fill("it is back")
    dialog.get_by_role("button", name="Resume").click()
    expect(page.locator("#hooks")).to_contain_text("Pause…")
    page.locator("#rows").get_by_role("link", name="webhook.test").click()
    expect(page.locator("#log")).to_contain_text("410")
    page.get_by_role("button", name="Deliver again…").click()
    dialog.get_by_label("Reason").fill("it is back")
    dialog.get_by_role("button", name="Deliver again").click()
    _until(page, "h1 + .chip", "delivered")
    _shot(page, "delivery")
    assert [request.headers["webhook-id"] for request in receiver.requests] == [
        receiver.requests[0].headers["webhook-id"]
    ] * 2


def _until(page: Any, place: str, text: str) -> None:
    """Reload the page until it contains the text: a worker sends the delivery later."""
    for _ in range(60):
        if text in page.locator(place).inner_text():
            return
        page.wait_for_timeout(500)
        page.reload()
    expect(page.locator(place)).to_contain_text(text)


def _shot(page: Any, name: str) -> None:
    """Take a screenshot if a folder for it is configured."""
    if folder := os.environ.get("HETSCHED_SHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)
