"""`watch`: run the informers of all live clusters until the process is stopped."""

from __future__ import annotations

from typing import Any

from django.core.checks import Tags
from django.core.management.base import BaseCommand

from hetsched.inventory.connections import api_of
from hetsched.placement import dispatch
from hetsched.scheduling import informer_process


class Command(BaseCommand):
    help = "Run the informers of the connected Kubernetes clusters; several processes share the clusters."
    # The checks of the URLs would import the web application, which needs 30 MiB.
    requires_system_checks = (Tags.security, Tags.compatibility)

    def handle(self, *args: Any, **options: Any) -> None:
        dispatch.send_in_background()
        informer_process.main(api_of, informer_process.until_signalled())
