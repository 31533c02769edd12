"""A real control plane in separate processes, and Chromium as its client.

The control plane and Chromium are started once. The demo cluster runs without its stream of workloads, so nothing
changes unless a test changes it. Each test gets its own logged-in browser contexts, and fails if a page violates its
content security policy or logs an error.

The tests check the behaviour of scripts, but not the content of pages (`tests/pages`) or their appearance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests import parts
from tests.system.plane import Plane, embedded
from tests.system.processes import accepts, free_port, wait_until

expect.set_options(timeout=20_000)  # generous, because a busy machine is slow


class Console:
    """The address of the running console, and helpers that change its content."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        wishes = ("--static", "--demo", "--admin")
        self.admin = json.loads(plane.run("-m", "django", "prepare", *wishes).splitlines()[-1])["admin"]
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        where = ("--host", "127.0.0.1", "--port", str(port), "--lifespan", "off", "--no-access-log")
        web = plane.start("web", "-m", "uvicorn", "hetsched.project.asgi:application", *where)
        plane.start_worker()
        wait_until(lambda: accepts(port) or not web.running, what="the web server", seconds=180)
        assert web.running, web.said()
        self.session: Any = None

    def log_in(self, page: Page) -> None:
        """Log in through the form; tabs that are opened later share the session."""
        page.goto(f"{self.url}/login/")
        page.fill("#id_username", self.admin["username"])
        page.fill("#id_password", self.admin["password"])
        page.click("main button[type=submit]")
        page.wait_for_url(f"{self.url}/")
        page.evaluate("localStorage.setItem('tour', 'closed')")  # the tour would cover elements that tests click
        self.session = page.context.storage_state()

    def run(self, code: str) -> str:
        """Run Python inside the control plane; return what it printed."""
        assert self.plane.driver
        printed: str = self.plane.driver("execute", code=code)
        return printed


@pytest.fixture(scope="session")
def console() -> Iterator[Console]:
    with embedded(HETSCHED_CALLBACK_HOSTS="127.0.0.1") as plane:
        yield Console(plane)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    # Playwright must end with this folder, because it keeps an event loop in this thread that would block Django and
    # other tests.
    with sync_playwright() as playwright:
        program = parts.require("chromium")
        browser = playwright.chromium.launch(executable_path=str(program), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    yield chromium
    for context in chromium.contexts:
        context.close()


def manifest_of(name: str, **pod: Any) -> dict[str, Any]:
    """Return the manifest of a pod that requests 100m CPU."""
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    spec = {"containers": [{"name": "main", "image": "example/image", "resources": resources}], **pod}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def ask(page: Page, address: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a POST request as a script in this browser would, and return the created document."""
    answer: dict[str, Any] = page.evaluate(
        """async ([address, body]) => {
            const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
            const headers = {"Content-Type": "application/json", "X-CSRFToken": token};
            return (await fetch(`/api/v1/${address}`, {method: "POST", headers, body: JSON.stringify(body)})).json();
        }""",
        [address, body],
    )
    assert "id" in answer, answer
    return answer


class Visitor:
    """One logged-in browser tab; `expected` contains parts of console errors that the test causes on purpose."""

    def __init__(self, page: Page, console: Console) -> None:
        self.page = page
        self.console = console
        self.errors: list[str] = []
        self.expected: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def unexpected(self) -> list[str]:
        return [error for error in self.errors if not any(part in error for part in self.expected)]

    def open(self, address: str) -> Page:
        """Open a URL and wait until its scripts have run."""
        self.page.goto(f"{self.console.url}{address}", wait_until="load")
        return self.page

    def submit(self, name: str, *, cluster: str = "demo", **pod: Any) -> None:
        """Submit a pod of 100m CPU as a script in this browser would."""
        ask(self.page, "workloads/", {"cluster": cluster, "manifest": manifest_of(name, **pod)})

    def decision_of(self, pod: str) -> str:
        """Wait for the decision of a pod, and return the URL of its page."""
        found: list[dict[str, Any]] = []

        def decided() -> bool:
            found[:] = self.page.evaluate(
                "async (pod) => (await (await fetch(`/api/v1/decisions/?pod=${pod}`)).json()).items", pod
            )
            return bool(found)

        wait_until(decided, what=f"a decision about {pod}")
        return f"/decisions/{found[0]['id']}/"


@pytest.fixture
def visit(browser: Browser, console: Console) -> Iterator[Callable[..., Visitor]]:
    """Return a factory of logged-in tabs of 1440 x 900 pixels; further arguments are passed to the browser context."""
    visitors: list[Visitor] = []

    def make(**options: Any) -> Visitor:
        size = {"width": 1440, "height": 900}
        given = {"viewport": size, "locale": "en-GB", "storage_state": console.session, **options}
        visitor = Visitor(browser.new_context(**given).new_page(), console)
        visitors.append(visitor)
        if console.session is None:
            console.log_in(visitor.page)
        return visitor

    yield make
    assert [error for visitor in visitors for error in visitor.unexpected()] == []


@pytest.fixture
def visitor(visit: Callable[..., Visitor]) -> Visitor:
    return visit()
