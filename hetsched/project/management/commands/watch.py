"""`watch`: run the informers of all live clusters until the process is stopped."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from hetsched.inventory.connections import api_of
from hetsched.placement import dispatch
from hetsched.project.checks import STARTUP
from hetsched.scheduling import informer_process


class Command(BaseCommand):
    help = "Run the informers of the connected Kubernetes clusters; several processes share the clusters."
    requires_system_checks = (STARTUP,)

    def handle(self, *args: Any, **options: Any) -> None:
        dispatch.send_in_background()
        informer_process.main(api_of, informer_process.until_signalled())
