"""Extraction of a page's own part, between the head with its menu and the foot."""


def main_of(page: str) -> str:
    """Return the markup inside a page's `<main>`."""
    return page.partition("<main")[2].partition("</main>")[0]
