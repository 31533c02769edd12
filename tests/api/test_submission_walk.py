"""A submission passes few modules between its request and its commit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.call_stacks import Stacks, stacks_at_writes
from tests.sqlite import needs_sqlite

from .conftest import POD, Api

MOST_MODULES = 20


@needs_sqlite
@pytest.mark.django_db(transaction=True)
def test_submission_reaches_its_commit_through_few_modules(operator: Api, cluster: Any) -> None:
    stacks = Stacks()
    with stacks_at_writes(stacks):
        operator("POST", "workloads/", POD, kind="application/yaml", status=202)
    assert "hetsched/placement/actions/submissions.py" in stacks.modules
    assert len(stacks.modules) <= MOST_MODULES, "\n".join(stacks.modules)
