"""The page reports that it is not current, reconnects, and requests missed data again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import WebSocketRoute, expect

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.needs("chromium")


def test_lost_connection_is_stale_then_live_again(visitor: Visitor) -> None:
    sockets: list[WebSocketRoute] = []

    def connect(socket: WebSocketRoute) -> None:
        if len(sockets) == 1:
            socket.close(code=1013)  # the first retry fails too
        else:
            socket.connect_to_server()
        sockets.append(socket)

    visitor.page.route_web_socket("**/ws/live/", connect)
    page = visitor.open("/")
    chip = page.locator("#live")
    expect(chip).to_have_text("live")
    sockets[0].close(code=1012)
    expect(chip).to_contain_text("stale")
    expect(chip).to_have_text("live")
    assert len(sockets) >= 3


def test_rejected_connection_is_not_retried(visitor: Visitor) -> None:
    tries: list[WebSocketRoute] = []

    def refuse(socket: WebSocketRoute) -> None:
        tries.append(socket)
        socket.close(code=4401)

    visitor.page.route_web_socket("**/ws/live/", refuse)
    page = visitor.open("/")
    expect(page.locator("#live")).to_have_text("logged out")
    page.wait_for_timeout(1500)
    assert len(tries) == 1


def test_event_gap_requests_a_new_snapshot(visitor: Visitor) -> None:
    asked: list[dict[str, Any]] = []
    counts = {"pending": 0, "not-now": 0, "never-fits": 0, "misconfigured": 0}
    topic = "cluster:demo"

    def serve(socket: WebSocketRoute) -> None:
        def send(kind: str, revision: int, waiting: int) -> None:
            data = {"counts": {**counts, "not-now": waiting}}
            whole = {"name": "demo", "policy": "hetsched", "nodes": {}, **data}
            sent = whole if kind == "snapshot" else data
            socket.send(json.dumps({"topic": topic, "revision": revision, "type": kind, "data": sent}))

        def receive(message: str | bytes) -> None:
            command = json.loads(message)
            asked.append(command)
            if topic not in command["topics"]:
                return
            if command["action"] == "subscribe":
                send("snapshot", 5, 1)
                send("delta", 6, 2)
                send("delta", 8, 4)  # 7 is missing: this one must not be applied
                send("delta", 9, 5)
            elif command["action"] == "refetch":
                send("snapshot", 9, 3)

        socket.on_message(receive)

    visitor.page.route_web_socket("**/ws/live/", serve)
    page = visitor.open("/")
    expect(page.locator("[data-count^=pending]")).to_have_text("3")
    assert [command["topics"] for command in asked if command["action"] == "refetch"] == [[topic]]


def test_paused_view_catches_up_when_resumed(visitor: Visitor) -> None:
    page = visitor.open("/")
    expect(page.locator("#live")).to_have_text("live")
    page.keyboard.press(".")
    expect(page.locator("#live")).to_have_text("paused")
    visitor.submit("while-paused", nodeSelector={"kubernetes.io/hostname": "epyc-5"})
    visitor.decision_of("while-paused")
    assert page.locator("#feed", has_text="while-paused").count() == 0
    page.keyboard.press(".")
    expect(page.locator("#feed")).to_contain_text("while-paused")
    expect(page.locator("#live")).to_have_text("live")


STATE = """() => ({
  nodes: [...document.querySelectorAll(".node")].map((tile) => tile.getAttribute("aria-label")),
  figures: [...document.querySelectorAll("[data-count], [data-head]")].map((figure) => figure.textContent),
  feed: [...document.querySelectorAll("#feed li a")].map((line) => line.textContent),
})"""


def test_reconnected_page_equals_a_new_one(visitor: Visitor) -> None:
    sockets: list[WebSocketRoute] = []
    messages: list[dict[str, Any]] = []
    refused = [False]

    def connect(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        if refused[0]:
            socket.close(code=1013)
            return
        server = socket.connect_to_server()

        def forward(message: str | bytes) -> None:
            messages.append(json.loads(message))
            socket.send(message)

        server.on_message(forward)

    page = visitor.page
    page.route_web_socket("**/ws/live/", connect)
    visitor.open("/")
    chip = page.locator("#live")
    expect(chip).to_have_text("live")
    refused[0] = True
    sockets[0].close(code=1012)
    expect(chip).to_contain_text("stale")
    for number in range(3):
        visitor.submit(f"meanwhile-{number}", nodeSelector={"kubernetes.io/hostname": "epyc-2"})
        visitor.decision_of(f"meanwhile-{number}")
    messages.clear()
    refused[0] = False
    expect(chip).to_have_text("live")
    expect(page.locator("#feed")).to_contain_text("meanwhile-2")
    # It resumed from its revisions: no snapshot was sent except the policies, which no page embeds.
    assert {message["topic"] for message in messages if message["type"] == "snapshot"} <= {"policies"}
    fresh = page.context.new_page()
    fresh.goto(page.url, wait_until="load")
    expect(fresh.locator("#live")).to_have_text("live")
    assert page.evaluate(STATE) == fresh.evaluate(STATE)
