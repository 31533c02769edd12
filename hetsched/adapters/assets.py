"""Paths of templates, static files, translations and CRDs: in `hetsched/assets` of a wheel, or in the checkout."""

from __future__ import annotations

from pathlib import Path

import hetsched

_PACKAGED = Path(hetsched.__file__).parent / "assets"
_CHECKOUT = _PACKAGED.parents[1]

TEMPLATES, STATIC, LOCALE = (
    (_PACKAGED if _PACKAGED.is_dir() else _CHECKOUT) / name for name in ("templates", "static", "locale")
)
CRDS = _PACKAGED / "crds" if _PACKAGED.is_dir() else _CHECKOUT / "deploy" / "crds"
