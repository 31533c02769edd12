"""Measurements of the console's first page in Chromium, for `bench console`.

The browser itself takes the times (paint timing, frames by requestAnimationFrame). A change counts as visible when the
first task after the frame that drew it runs. Nothing is measured if playwright or Chromium is missing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from hetsched.contracts.errors import InputError

_LIVE = r"/\/live(\.[0-9a-f]+)?\.js$/"
# Runs before the scripts of the page. Records the time of each frame, and of each redraw that the page reports by its
# `drawn` event.
_WATCH = """
window.bench = {frames: [], drawn: []};
(() => {
  let last = null;
  const frame = (now) => {
    if (last !== null) window.bench.frames.push([now, now - last]);
    last = now;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  const paintedSoon = (note) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = note;
    channel.port2.postMessage(0);
  };
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("fleet")?.addEventListener("drawn", ({detail}) => {
      const {revision, names, took} = detail;
      const note = (at) => window.bench.drawn.push([at, revision, [...names], took]);
      paintedSoon(() => note((performance.timeOrigin + performance.now()) / 1000));
    });
  });
})();
"""
_PAINTED = """() => {
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const drawn = performance.getEntriesByName("fleet-drawn")[0];
  const [page] = performance.getEntriesByType("navigation");
  if (!paint || !drawn) return null;
  const [answered, painted, drawn_at] = [page.responseStart, paint.startTime, drawn.startTime];
  return {answered, painted, drawn: drawn_at, kib: page.decodedBodySize / 1024};
}"""
_DOCUMENT = f"""async (topic) => {{
  const script = performance.getEntriesByType("resource").find((entry) => {_LIVE}.test(entry.name));
  const {{ liveOfPage }} = await import(script.name);
  for (let left = 600; left > 0 && !liveOfPage().topics.get(topic)?.document; left -= 1) {{
    await new Promise((go) => setTimeout(go, 100));
  }}
  return liveOfPage().topics.get(topic)?.document ?? null;
}}"""


def _wait_until_drawn(page: Any) -> Any:
    """Wait until a page has its first contentful paint and its fleet map, and return the browser's measurements."""
    until = time.monotonic() + 60
    while (noted := page.evaluate(_PAINTED)) is None:
        if time.monotonic() > until:
            raise InputError("BenchmarkFailed", "the first screen was not rendered within one minute")
        page.wait_for_timeout(20)
    return noted


class PageMeasurements(msgspec.Struct):
    """Measurements of an open page.

    `frames` contains the frame times in ms by activity, `drawn` the time (seconds since 1970), revision, node names and
    duration in ms of each redraw.
    """

    frames: dict[str, list[float]] = msgspec.field(default_factory=lambda: {"hover": [], "scroll": []})
    drawn: list[tuple[float, int, list[str], float]] = msgspec.field(default_factory=list)

    def revisions(self) -> Iterator[tuple[int, float]]:
        """Yield each revision with the time at which it became visible."""
        last = None
        for at, revision, _, _ in self.drawn:
            for number in range((revision if last is None else last + 1), revision + 1):
                yield number, at
            last = revision

    def after(self, sent: Mapping[str, Sequence[float]]) -> Iterator[float]:
        """Yield, for each change of a node, the seconds from sending the change until the page showed it."""
        times: dict[str, list[float]] = {}
        for at, _, names, _ in self.drawn:
            for name in names:
                times.setdefault(name, []).append(at)
        if not self.drawn:
            return
        begin, end = self.drawn[0][0], self.drawn[-1][0]
        for name, moments in sent.items():
            for moment in moments:
                shown = next((at for at in times.get(name, ()) if at >= moment), None)
                if shown is not None and begin <= moment <= end:
                    yield shown - moment


class Browser:
    """Chromium, logged in to the console; if Chromium or playwright is missing, nothing is measured."""

    def __init__(self, url: str, password: str) -> None:
        self._url = url
        self._password = password
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        self._program = program if find_spec("playwright") else None
        self.version = "none: Chromium or playwright is not installed" if self._program is None else ""
        self._page: Any = None

    def __enter__(self) -> Browser:
        if self._program is None:
            return self
        self._playwright = import_module("playwright.sync_api").sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=self._program, args=["--no-sandbox"])
        self.version = f"Chromium {self._browser.version}, headless"
        self._context = self._browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB")
        self._context.add_init_script(_WATCH)
        page = self._context.new_page()
        page.goto(f"{self._url}/login/")
        page.fill("#id_username", "admin")
        page.fill("#id_password", self._password)
        page.click("main button[type=submit]")
        page.wait_for_url(f"{self._url}/")
        page.close()
        return self

    def __exit__(self, *_: object) -> None:
        if self._program is not None:
            self._browser.close()
            self._playwright.stop()

    @property
    def pages(self) -> int:
        return int(self._page is not None)

    def loads(self, count: int) -> list[dict[str, float]]:
        """Open the console's first page `count` times and return the browser's measurements, in ms since the request.

        Before the measured loads, the page is opened once, because the server computes its first headroom table from
        the whole cluster.
        """
        noted = []
        if self._program:
            page = self._context.new_page()
            page.goto(f"{self._url}/", wait_until="load")
            page.wait_for_selector("#headroom tbody tr", state="attached", timeout=240_000)
            page.close()
        for _ in range(count if self._program else 0):
            page = self._context.new_page()
            page.goto(f"{self._url}/", wait_until="load")
            noted.append(_wait_until_drawn(page))
            page.close()
        return noted

    def watch(self, seconds: float) -> PageMeasurements:
        """Keep the console's first page open for `seconds`, and return its measurements.

        The mouse pointer moves over the page for half of the time; then the page is scrolled.
        """
        seen = PageMeasurements()
        if self._program is None:
            time.sleep(seconds)
            return seen
        page = self._page = self._context.new_page()
        page.goto(f"{self._url}/", wait_until="load")
        page.wait_for_selector("#live.good", timeout=60_000)
        page.evaluate("window.bench.drawn = []")
        box = page.locator("#grid").bounding_box()
        seen.frames["hover"] = self._frames(seconds / 2, lambda step: page.mouse.move(
            box["x"] + 140 + step * 37 % (box["width"] - 150), box["y"] + 20 + step * 11 % (box["height"] - 30)
        ))  # fmt: skip
        page.set_viewport_size({"width": 1440, "height": 620})
        page.mouse.move(1200, 590)
        seen.frames["scroll"] = self._frames(
            seconds / 2, lambda step: page.mouse.wheel(0, 60 if step // 20 % 2 else -60)
        )
        page.set_viewport_size({"width": 1440, "height": 900})
        seen.drawn = [tuple(item) for item in page.evaluate("window.bench.drawn")]
        return seen

    def _frames(self, seconds: float, act: Any) -> list[float]:
        page = self._page
        page.wait_for_timeout(500)
        page.evaluate("window.bench.frames = []")
        until, step = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            act(step)
            step += 1
        return [took for _, took in page.evaluate("window.bench.frames")]

    def differs(self, fresh: Any) -> int:
        """Return 1 if the document of the open page differs from `fresh`, else 0."""
        if self._page is None:
            return 0
        document = self._page.evaluate(_DOCUMENT, f"cluster:{fresh.get('name')}")
        return int(document != fresh)
