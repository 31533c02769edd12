"""`connect`: create a live cluster or update its connection from this machine; a second run changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from hetsched.adapters.kubernetes.connections.connection import inside
from hetsched.adapters.kubernetes.connections.kubeconfig import MAX_BYTES, read
from hetsched.contracts.errors import InputError
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.connections import connect
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.journal import audit
from hetsched.project.environment import exit_with_message
from hetsched.storage.write_lock import write_transaction


class Command(BaseCommand):
    help = "Create or reconnect a cluster of kind kubernetes, with a kubeconfig or from inside the cluster."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="name of the cluster")
        parser.add_argument("--kubeconfig", type=Path, help="kubeconfig of the cluster; credentials must be inline")
        parser.add_argument("--context", default="", help="context of the kubeconfig; default: its current context")
        parser.add_argument(
            "--in-cluster", action="store_true", help="connect to the cluster in which this process runs"
        )
        parser.add_argument("--namespace", action="append", help="namespace that submissions may use; can be repeated")
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument("--shadow", metavar="SCHEDULER", help="shadow mode of this scheduler; writes nothing")
        mode.add_argument("--no-shadow", dest="shadow", action="store_const", const="", help="leave shadow mode")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._connect(options)
        except InputError as error:
            exit_with_message(error)
        except OSError as error:
            message = error.strerror or str(error)
            exit_with_message(InputError("FileUnusable", message, place=str(options["kubeconfig"])))

    def _connect(self, options: dict[str, Any]) -> None:
        document = None
        if options["kubeconfig"] is not None:
            with options["kubeconfig"].open("rb") as file:
                document = read(file.read(MAX_BYTES + 1))
        if options["in_cluster"]:
            inside()
        with write_transaction():
            cluster = Cluster.objects.filter(name=options["name"]).first()
            if cluster is None:
                cluster = create_cluster(
                    name=options["name"], kind=ClusterKind.KUBERNETES, actor=audit.SYSTEM, reason="command line"
                )
            connection = connect(
                cluster,
                kubeconfig=document,
                context=options["context"],
                in_cluster=options["in_cluster"],
                enrolled_namespaces=options["namespace"],
                shadow_of=options["shadow"],
                actor=audit.SYSTEM,
                reason="command line",
            )
        self.stderr.write(f"  cluster {cluster.name}: {connection.server or 'in-cluster'}")
