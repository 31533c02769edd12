"""Run a periodic task once per period, guarded by `hetsched.journal.periodic_locks`."""

from __future__ import annotations

from celery import current_app, shared_task

from hetsched.journal import periodic_locks


@shared_task(name="workers.periodic_tasks.run")
def run(task: str, period_seconds: float, arguments: list[str]) -> bool:
    """Run a task in this process unless some process already ran it in this period; return whether it ran."""
    if not periodic_locks.acquire(" ".join([task, *arguments]), period_seconds):
        return False
    current_app.tasks[task](*arguments)
    return True
