"""Over a thousand named hostile requests: none gets a 5xx, every rejection is a problem document."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest
from django.db import transaction

from hetsched.placement import scheduler_cache

from .conftest import Api
from .hostile_cases import GROUPS


def test_hostile_cases_have_unique_names() -> None:
    names = [case.name for group in GROUPS.values() for case in group]
    assert len(names) == len(set(names)) >= 400


@pytest.mark.parametrize("group", GROUPS)
def test_no_case_breaks_the_server(
    group: str, api: Callable[..., Api], cluster: Any, figures: dict[str, object], settings: Any
) -> None:
    settings.SECRET_KEY_GIVEN = True  # without it no allocation is read back
    ask = api("agent" if group == "reports" else "operator")
    broken, took = [], []
    for case in GROUPS[group]:
        began = perf_counter()
        with transaction.atomic():
            answer = ask(case.method, case.address, case.body or None, kind=case.kind)
            transaction.set_rollback(True)
        took.append(perf_counter() - began)
        scheduler_cache._caches.clear()
        refused = answer.status_code >= 400
        if answer.status_code >= 500 or refused and answer["Content-Type"] != "application/problem+json":
            broken.append(f"{case.name}: {answer.status_code} {answer.content[:200]!r}")
        elif refused and not answer.json()["code"]:
            broken.append(f"{case.name}: no code")
    assert not broken, "\n".join(broken)
    slowest = sorted(took)[int(0.99 * len(took))]
    figures[f"hostile {group}"] = f"{len(took)} cases, 0 x 5xx, p99 {1000 * slowest:.0f} ms"
