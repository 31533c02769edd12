"""Characters that nobody sees, or that turn the text around them, are shown by name.

Problem: a name may hold a mark that has what follows it read from the right, so that `gnp.exe` is seen as `exe.png`;
escaping protects the page from markup, not its reader from this.
Rule: controls stand as their pictures (`␛`), marks of direction and invisible ones as `⟦U+202E⟧`. Letters of all
directions stay as they are, and so do the joiners that they and emoji need. Scripts do the same (`static/js/draw.js`).
"""

from __future__ import annotations

import re

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n\r"} | {0x7F: "␡"}
_MARKS = (
    *range(0x80, 0xA0), 0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F),
    *range(0x2060, 0x206A), 0xFEFF, *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080),
)  # fmt: skip
_SHOWN = _PICTURES | {code: f"⟦U+{code:04X}⟧" for code in _MARKS}
_UNSEEN = re.compile("[" + "".join(re.escape(chr(code)) for code in _SHOWN) + "]")


def visible(text: str) -> str:
    """Return a text with what cannot be seen in it shown by name."""
    return text.translate(_SHOWN) if _UNSEEN.search(text) else text
