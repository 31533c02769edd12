"""Requests of docs/how-to/submitting.md return the status and the fields that the page shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hetsched.inventory.models import Cluster
from hetsched.placement.queries.invariants import check_invariants

from .conftest import POD, Api

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "submitting.md"
BLOCK = re.compile(r"```http\n(\w+) (\S+)\n((?:[A-Z][\w-]+: [^\n]*\n)*)(.*?)\n\n(\d{3})\n(.*?)\n```", re.DOTALL)


def missing(documented: Any, sent: Any, place: str = "") -> list[str]:
    """Return the documented parts that the response lacks; values may differ, but states and numbers may not."""
    if isinstance(documented, dict):
        lost = [f"{place}.{name}" for name in documented if name not in sent]
        return lost + [
            one for name in documented.keys() & sent for one in missing(documented[name], sent[name], f"{place}.{name}")
        ]
    if isinstance(documented, list):
        if documented and len(documented) != len(sent):
            return [place]
        return [one for pair in zip(documented, sent, strict=False) for one in missing(*pair, place)]
    kind = place.rpartition(".")[2]
    fixed = kind in ("state", "status", "index", "accepted", "refused", "verdict", "pod", "key", "held")
    return [place] if fixed and "…" not in str(documented) and documented != sent else []


def test_documented_responses_are_the_actual_ones(operator: Api, cluster: Cluster) -> None:
    kept = operator("POST", "holds/", POD.replace("web", "kept"), kind="application/yaml", status=201).json()["id"]
    names = {"HOLD2": kept}
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 7
    for method, address, head, body, status, documented in blocks:
        for name, value in names.items():
            address, body = re.sub(rf"\b{name}\b", value, address), re.sub(rf"\b{name}\b", value, body)
        headers = {
            name.lower().replace("-", "_"): value for name, value in re.findall(r"^([\w-]+): (.*)$", head, re.MULTILINE)
        }
        answer = operator(method, address, json.loads(body), status=int(status), **headers).json()
        assert missing(json.loads(documented), answer) == [], address
        if "plan" in answer:
            names["PLAN"] = answer["plan"]["token"]
        if address.endswith("/holds/"):
            names["HOLD"] = answer["id"]
    assert check_invariants() == []


def test_documented_codes_are_the_actual_ones() -> None:
    root = PAGE.parents[2]
    code = "\n".join(
        path.read_text() for folder in ("web", "hetsched/placement") for path in (root / folder).rglob("*.py")
    )
    named = set(re.findall(r"\b\d{3} `([A-Z]\w+)`", PAGE.read_text()))
    assert len(named) >= 8
    assert {name for name in named if f'"{name}"' not in code} == set()
