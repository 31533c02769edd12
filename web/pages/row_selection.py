"""Selection of list rows for actions on several workloads.

Only users who may run the actions can select rows. The available actions depend on the listed rows: retry for pending
and failed pods, a change of priority for pending pods, and cancel for unfinished pods.
"""

from __future__ import annotations

from typing import Any

from hetsched.access.roles import Action
from hetsched.access.subject import subject_of

from .lists.columns import Cell, Column
from .lists.view import ListView


def _cell(row: Any) -> Cell:
    # Pods of other schedulers have no workload.
    return Cell(row.workload_id, look="pick" if row.workload_id else "", title=row.key)


_PICK = Column("pick", "", lambda row: row.workload_id, _cell, sortable=False)


def pickable(view: ListView, *offered: str) -> dict[str, bool]:
    """Enable row selection for users who may run the actions; return the context of the action bar.

    `offered` lists the available actions: any of retry, priority and cancel.
    """
    subject = subject_of(view.shell.request)
    may = {"retry": Action.SUBMIT, "priority": Action.OPERATE, "cancel": Action.SUBMIT}
    found = {name: True for name in offered if subject.may(may[name])}
    if found and not view.format:
        view.columns = [_PICK, *view.columns]
    return found
