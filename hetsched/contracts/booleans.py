"""Parse booleans in the spellings that Go accepts.

Source: Go `strconv.ParseBool`.
"""

from __future__ import annotations

BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
