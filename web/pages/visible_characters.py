"""Make invisible and text-direction characters visible.

A direction mark in a name reverses the text after it, so that `gnp.exe` is displayed as `exe.png`. Escaping protects
the page from markup, but does not prevent this. Control characters are replaced by their symbols (`␛`), and direction
marks and invisible characters by their code points (`⟦U+202E⟧`). Letters of all directions and the joiners of scripts
and emoji are unchanged. `static/js/draw.js` does the same.
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
    """Return a text with its invisible characters replaced by symbols or code points."""
    return text.translate(_SHOWN) if _UNSEEN.search(text) else text
