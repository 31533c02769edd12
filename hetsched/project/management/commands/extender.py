"""`extender`: serve kube-scheduler's extender calls until the process is stopped."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from hetsched.contracts.errors import InputError
from hetsched.project.environment import exit_with_message
from hetsched.scheduling import informer_process
from hetsched.scheduling.extender import server


class Command(BaseCommand):
    help = "Serve the kube-scheduler extender over TLS with client certificates."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            server.serve(informer_process.until_signalled())
        except InputError as error:
            exit_with_message(error)
