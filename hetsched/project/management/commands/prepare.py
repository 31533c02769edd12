"""`prepare`: migrate the database and prepare the first start.

Every step is idempotent and does not change existing rows. Progress is printed on standard error. The only output on
standard output is one JSON document: `{"admin": {"username", "password"} | null, "live": bool}`. The password is
printed here and stored only as its hash. `live` states whether a live cluster is connected.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from hetsched.adapters.traces.simulated_fleet import demo_cluster
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.journal import audit
from hetsched.placement.actions import import_cluster
from hetsched.policies.actions import ensure_builtins
from hetsched.project import static_files
from hetsched.storage.write_lock import write_transaction

ADMIN = "admin"
DEMO_CLUSTER, DEMO_SEED = "demo", 7


class Command(BaseCommand):
    help = "Migrate the database and add the built-in policies; the options prepare a first start."
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--static", action="store_true", help="collect the static files")
        parser.add_argument("--demo", action="store_true", help="add the demo cluster if it does not exist")
        parser.add_argument("--admin", action="store_true", help="create an administrator if there is none")
        parser.add_argument("--reset-admin", action="store_true", help="set a new password for the administrator")

    def handle(self, *args: Any, **options: Any) -> None:
        with step("database"):
            call_command("migrate", verbosity=0, interactive=False)
        with step("built-in policies"):
            ensure_builtins()
        if options["static"] and static_files.are_stale():
            with step("static files"):
                static_files.collect()
        if options["demo"] and not Cluster.objects.filter(name=DEMO_CLUSTER).exists():
            with step("demo cluster"):
                import_cluster(
                    demo_cluster(DEMO_SEED), name=DEMO_CLUSTER, kind="demo", actor=audit.SYSTEM, demo_seed=DEMO_SEED
                )
        admin = None
        if options["admin"] or options["reset_admin"]:
            admin = make_admin(reset=options["reset_admin"])
        live = Cluster.objects.filter(kind=ClusterKind.KUBERNETES, connection__isnull=False).exists()
        self.stdout.write(json.dumps({"admin": admin, "live": live}))


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print the current step, and its duration if it takes more than 2 seconds."""
    sys.stderr.write(f"  {title} …\n")
    started = time.monotonic()
    yield
    seconds = time.monotonic() - started
    if seconds > 2:
        sys.stderr.write(f"  {title}: done in {seconds:.0f} s\n")


@write_transaction()
def make_admin(*, reset: bool) -> dict[str, str] | None:
    """Create the first administrator, or with `reset` set a new password; return the credentials to print, if any."""
    users = get_user_model().objects
    account = users.filter(is_superuser=True).order_by("pk").first()
    if account is not None and not reset:
        return None
    password = secrets.token_urlsafe(12)
    if account is None:
        account = users.create_superuser(username=ADMIN, password=password)
    else:
        account.set_password(password)
        account.save(update_fields=["password"])
    audit.record(
        actor=audit.SYSTEM.name, role=audit.SYSTEM.role, action="admin.password", obj=("user", account.username)
    )
    return {"username": account.username, "password": password}
