"""`make screenshots`: take a picture of every page for the documentation; `--all DIR` takes all variants.

A separate control plane runs the demo cluster with some workloads of its stream. The table of pages is the same as in
the tests. The documentation gets every page in English and in both themes, and the main pages in Chinese, as WebP.
`--all` writes full-height PNG files of every page, theme, language and width, for review.
"""

from __future__ import annotations

import argparse
import base64
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests import parts
from tests.browser.conftest import Console
from tests.browser.screens import addresses
from tests.system.plane import embedded

DOCS = Path(__file__).resolve().parents[2] / "docs" / "screens"
SIZE = {"width": 1440, "height": 900}
WIDTHS = (1440, 1024, 390)
CHINESE = ("fleet", "node-numa", "what-if", "why", "policies", "balance")
LIVELY = """
import time
from workers.demo import tick
from hetsched.placement.models import Pod
for _ in range(12):
    tick()
    for _ in range(50):
        if not Pod.objects.filter(state="pending").exists():
            break
        time.sleep(0.1)
"""


def main() -> int:
    """Take the pictures; return the exit code."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--all", metavar="DIR", type=Path, help="write everything there, not the documentation")
    reader.add_argument("--only", metavar="NAME", action="append", help="only these screens")
    asked = reader.parse_args()
    with embedded() as plane, sync_playwright() as playwright:
        console = Console(plane)
        console.run(LIVELY)
        browser = playwright.chromium.launch(executable_path=str(parts.require("chromium")), args=["--no-sandbox"])
        first = browser.new_context(viewport=SIZE, locale="en-GB").new_page()
        console.log_in(first)
        screens = {name: url for name, url in addresses(console, first).items() if not asked.only or name in asked.only}
        for theme in ("light", "dark"):
            for language, locale in (("en", "en-GB"), ("zh", "zh-CN")):
                context = browser.new_context(
                    viewport=SIZE, locale=locale, color_scheme=theme, storage_state=console.session
                )
                page = context.new_page()
                for name, address in screens.items():
                    if asked.all:
                        _everything(page, console.url + address, asked.all / f"{theme}-{language}-{name}")
                    elif language == "en" or (theme == "light" and name in CHINESE):
                        folder = DOCS / (theme if language == "en" else "zh")
                        _documented(page, console.url + address, folder / f"{name}.webp")
                context.close()
    return 0


def _everything(page: Page, url: str, stem: Path) -> None:
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900 if width > 400 else 844})
        page.goto(url, wait_until="networkidle")
        page.screenshot(path=f"{stem}-{width}.png", full_page=True)


def _documented(page: Page, url: str, path: Path) -> None:
    page.goto(url, wait_until="networkidle")
    taken = page.context.new_cdp_session(page).send("Page.captureScreenshot", {"format": "webp", "quality": 82})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(taken["data"]))
    sys.stderr.write(f"{path.parent.name}/{path.name}\n")


if __name__ == "__main__":
    sys.exit(main())
