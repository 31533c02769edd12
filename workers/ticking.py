"""Do what a beat asks for, once a slot: `hetsched.journal.periodic_locks` says whose turn it is."""

from __future__ import annotations

from celery import current_app, shared_task

from hetsched.journal import periodic_locks


@shared_task(name="workers.ticking.run")
def run(task: str, period_seconds: float, arguments: list[str]) -> bool:
    """Do a task here and now, unless this slot of it was done; return whether it was done now."""
    if not periodic_locks.take(" ".join([task, *arguments]), period_seconds):
        return False
    current_app.tasks[task](*arguments)
    return True
