"""Extraction of the main part of a page, between the header with the menu and the footer."""


def main_of(page: str) -> str:
    """Return the markup inside the `<main>` element of a page."""
    return page.partition("<main")[2].partition("</main>")[0]
