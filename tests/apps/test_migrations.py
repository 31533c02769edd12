"""Migrations match the models, and both ways to the tables of today lead to the same ones."""

from __future__ import annotations

import json
import re
import subprocess
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from django.core.management import call_command
from django.db import connection

from hetsched.contracts.objects.devices import (
    AllocatedDevice,
    Device,
    DeviceCapacity,
    DeviceId,
    Devices,
    ResourceClaim,
)
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm
from tests.system.processes import ROOT, plain_environment, python

# An installation of an earlier release runs the migrations that a new database replaces by one for each app.
UPGRADE = """
import django; django.setup()
import json
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
executor = MigrationExecutor(connection)
executor.loader = MigrationLoader(connection, replace_migrations=False)
graph = executor.loader.graph
executor.migrate([leaf for leaf in graph.leaf_nodes() if not graph.nodes[leaf].replaces])
with connection.cursor() as cursor:
    print(json.dumps(cursor.execute("SELECT name, sql FROM sqlite_master WHERE type <> 'trigger'").fetchall()))
"""
_SEPARATOR = re.compile(r", (?=\"|CONSTRAINT)")


@pytest.mark.django_db
def test_no_model_changed_without_a_migration() -> None:
    call_command("makemigrations", "--check", "--dry-run", "journal", "inventory", "policies", "placement", verbosity=0)


@pytest.mark.django_db
def test_new_and_upgraded_databases_have_the_same_tables(tmp_path: Path) -> None:
    env = plain_environment() | {
        "DJANGO_SETTINGS_MODULE": "hetsched.project.settings", "HETSCHED_DATA": str(tmp_path), "SECRET_KEY": "x" * 40,
    }  # fmt: skip
    done = subprocess.run(python("-c", UPGRADE), env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, sql FROM sqlite_master WHERE type <> 'trigger'")
        new = {name: _parts(statement) for name, statement in cursor.fetchall()}
    del new["sqlite_stat1"]  # created after the migrations of `migrate`
    upgraded = {name: _parts(statement) for name, statement in json.loads(done.stdout)}
    assert len(new) > 0
    assert new == upgraded


def test_stored_devices_are_converted() -> None:
    device = {"driver": "gpu.example.com", "pool": "n1", "name": "d0"}
    claim = {"namespace": "default", "name": "c"}
    before = {
        "devices": [{"id": device, "node": "n1", "capacity": {"gpu.example.com/memory": 40, "other/memory": 1}}],
        "claims": {"default/c": {**claim, "allocated": [device], "node": "n1"}, "default/d": {**claim, "node": ""}},
    }
    migration = import_module("hetsched.inventory.migrations.0024_device_shares")
    found = msgspec.convert(migration.convert(before), Devices)
    capacity = {"memory": DeviceCapacity(40), "other/memory": DeviceCapacity(1)}
    device_id = DeviceId(**device)
    assert found.devices == (Device(device_id, "n1", capacity=capacity),)
    on_node = (NodeTerm(fields=(Expression("metadata.name", "In", ("n1",)),)),)
    allocated = ResourceClaim("default", "c", allocated=(AllocatedDevice(device_id),), node_terms=on_node)
    assert found.claims == {"default/c": allocated, "default/d": ResourceClaim("default", "c")}


def _parts(statement: str | None) -> list[str]:
    """Return the columns and constraints of a statement in an order of their own: upgrades append columns."""
    return sorted(_SEPARATOR.split((statement or "").partition("(")[2].removesuffix(")")))
