"""Draw the state diagram of the pod lifecycle as an SVG picture in the page.

A forge renders the Mermaid source with a script. The site loads no script, so this extension draws the transitions at
fixed places of the states. A state without a place fails the build.
"""

from __future__ import annotations

import math
import re
from html import escape

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

# Centres of the states in pixels.
PLACES = {
    "[*]": (80, 150),
    "misconfigured": (80, 40),
    "never_fits": (290, 40),
    "not_now": (500, 40),
    "pending": (80, 230),
    "placed": (290, 230),
    "binding": (500, 230),
    "bound": (710, 230),
    "running": (900, 230),
    "cancelled": (185, 420),
    "failed": (610, 420),
    "succeeded": (900, 420),
}
WIDTH, HEIGHT, BOX = 990, 460, (118, 34)
_TRANSITION = re.compile(r"^\s*(\S+) --> (\S+)\s*$", re.MULTILINE)
_LOGGER = logging.getLogger(__name__)
Point = tuple[float, float]


def draw_diagrams(app: Sphinx, doctree: nodes.document) -> None:
    """Replace each state diagram of a page by a picture (event `doctree-read`)."""
    for block in list(doctree.findall(nodes.literal_block)):
        if block.get("language") == "mermaid" and block.astext().startswith("stateDiagram"):
            transitions = _TRANSITION.findall(block.astext())
            unknown = sorted({state for pair in transitions for state in pair} - PLACES.keys())
            if unknown:
                _LOGGER.warning("states without a place in the diagram: %s", ", ".join(unknown), location=block)
                continue
            block.replace_self(nodes.raw("", picture(transitions), format="html"))


def picture(transitions: list[tuple[str, str]]) -> str:
    """Return the SVG element of the transitions, with a description for screen readers."""
    states = sorted({state for pair in transitions for state in pair}, key=list(PLACES).index)
    described = "; ".join(f"{_word(source)} to {_word(target)}" for source, target in transitions)
    head = (
        f'<svg class="states" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg">'
        f"<title>States and transitions</title><desc>{escape(described)}</desc>"
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
    )
    return "\n".join([head, *(_arrow(*pair) for pair in transitions), *map(_box, states), "</svg>"])


def _box(state: str) -> str:
    x, y = PLACES[state]
    if state == "[*]":
        return f'<circle cx="{x}" cy="{y}" r="7" fill="currentColor"/>'
    width, height = BOX
    return (
        f'<rect x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width}" height="{height}" rx="6"/>'
        f'<text x="{x}" y="{y + 5}">{escape(_word(state))}</text>'
    )


def _arrow(source: str, target: str) -> str:
    """Return a curve that bends to its left, so that opposite transitions do not overlap."""
    start, end = PLACES[source], PLACES[target]
    across, down = end[0] - start[0], end[1] - start[1]
    bend = 0.0 if source == "[*]" else 12 + 0.12 * math.hypot(across, down)
    length = math.hypot(across, down)
    middle = (
        (start[0] + end[0]) / 2 + bend * down / length,
        (start[1] + end[1]) / 2 - bend * across / length,
    )
    first, last = _edge(start, middle), _edge(end, middle)
    kind = ' class="back"' if target == "pending" and source != "[*]" else ""
    return (
        f'<path{kind} d="M{first[0]:.0f} {first[1]:.0f} Q{middle[0]:.0f} {middle[1]:.0f} {last[0]:.0f} {last[1]:.0f}" '
        'fill="none" stroke="currentColor" marker-end="url(#arrow)"/>'
    )


def _edge(centre: Point, towards: Point) -> Point:
    """Return the point at which the line from the centre of a box leaves the box."""
    across, down = towards[0] - centre[0], towards[1] - centre[1]
    share = min(BOX[0] / 2 / abs(across) if across else math.inf, BOX[1] / 2 / abs(down) if down else math.inf)
    return centre[0] + across * share, centre[1] + down * share


def _word(state: str) -> str:
    return "start" if state == "[*]" else state.replace("_", "-")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", draw_diagrams)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
