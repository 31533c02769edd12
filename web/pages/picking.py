"""Rows of a list that are picked, to act on several workloads at once.

Rule: who may not act picks nothing. Offered is what makes sense for the rows that are listed: what waits or failed is
tried again, what waits gets another priority, what is not over is cancelled.
"""

from __future__ import annotations

from typing import Any

from hetsched.access.roles import Action
from hetsched.access.subject import subject_of

from .lists.columns import Cell, Column
from .lists.view import View


def _cell(row: Any) -> Cell:
    # Pods that others put there belong to no workload.
    return Cell(row.workload_id, look="pick" if row.workload_id else "", title=row.key)


_PICK = Column("pick", "", lambda row: row.workload_id, _cell, sortable=False)


def pickable(view: View, *offered: str) -> dict[str, bool]:
    """Let rows of this view be picked, for those who may act; return what the bar above the list offers.

    `offered` are of retry, priority and cancel.
    """
    subject = subject_of(view.shell.request)
    may = {"retry": Action.SUBMIT, "priority": Action.OPERATE, "cancel": Action.SUBMIT}
    found = {name: True for name in offered if subject.may(may[name])}
    if found and not view.format:
        view.columns = [_PICK, *view.columns]
    return found
