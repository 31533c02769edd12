"""Migrations since the last release keep the previous version running on the migrated database.

Two versions use one database during an upgrade and after a rollback (docs/how-to/migrations.md). The linter reports the
statements with which the previous version fails: removed or renamed columns and tables, new columns without a default
in the database, changed types, new unique constraints. It reads the statements for PostgreSQL, because SQLite copies
whole tables. A migration that alters several tables can deadlock with a transaction of the running version, so it is
reported as `SEVERAL_TABLES`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.system.databases import postgres
from tests.system.processes import plain_environment, python

pytestmark = pytest.mark.needs("postgres")
# The last migration of each app in the last release.
RELEASED = {
    "access": "0005_accounts",
    "inventory": "0025_stored_tokens",
    "journal": "0004_message_columns",
    "placement": "0029_history_indexes",
    "policies": "0008_message_columns",
}
# The linter's codes of statements that stop the previous version.
INCOMPATIBLE = {
    "RENAME_TABLE", "NOT_NULL", "DROP_COLUMN", "DROP_TABLE", "RENAME_COLUMN", "ALTER_COLUMN", "ADD_UNIQUE",
    "SEVERAL_TABLES",
}  # fmt: skip
# Print the codes of each migration after the given one, by app and name.
LINT = r"""
import json, re, sys
from django.conf import settings
released = json.loads(sys.argv[1])
settings.INSTALLED_APPS += [app for app in released if app == "planted"]
import django; django.setup()
from django_migration_linter import MigrationLinter
from django_migration_linter.sql_analyser import analyse_sql_statements
linter = MigrationLinter(no_cache=True, no_output=True)
codes = {}
for (app, name), migration in linter.migration_loader.disk_migrations.items():
    if app in released and name > released[app] and not migration.replaces:
        statements = linter.get_sql(app, name)
        found = analyse_sql_statements(linter.sql_analyser_class, statements, [])
        sql = "\n".join(statements)
        altered, created = (set(re.findall(f'^{verb} TABLE "([a-z0-9_]+)"', sql, re.M)) for verb in ("ALTER", "CREATE"))
        several = ["SEVERAL_TABLES"] if len(altered - created) > 1 else []
        codes[f"{app}.{name}"] = sorted({issue.code for issues in found for issue in issues}.union(several))
print(json.dumps(codes, sort_keys=True))
"""
FIRST = """
migrations.CreateModel("Row", [("id", models.AutoField(primary_key=True)), ("old", models.TextField(null=True))]),
migrations.CreateModel("Other", [("id", models.AutoField(primary_key=True))]),
"""
# Operations, each on the columns that the ones before it left, and the codes of the incompatible ones.
PLANTED = {
    'migrations.AddField("row", "a", models.TextField(null=True))': [],
    'migrations.AddField("row", "b", models.IntegerField(default=7, db_default=7))': [],
    'migrations.AddIndex("row", models.Index("old", name="row_old"))': [],
    'migrations.AddField("row", "d", models.TextField(null=True)), '
    'migrations.AddField("other", "d", models.TextField(null=True))': ["SEVERAL_TABLES"],
    'migrations.AddField("row", "c", models.IntegerField(default=7))': ["NOT_NULL"],
    'migrations.AlterField("row", "b", models.TextField(default="", db_default=""))': ["ALTER_COLUMN"],
    'migrations.AlterUniqueTogether("row", [("a", "b")])': ["ADD_UNIQUE"],
    'migrations.RenameField("row", "old", "new")': ["RENAME_COLUMN"],
    'migrations.RemoveField("row", "new")': ["DROP_COLUMN"],
    'migrations.AlterModelTable("Row", "rows")': ["RENAME_TABLE"],
    'migrations.DeleteModel("Row")': ["DROP_TABLE"],
}
MIGRATION = """
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = {dependencies}
    operations = [{operation}]
"""


def incompatible(released: dict[str, str], folder: Path) -> dict[str, list[str]]:
    """Return the codes of incompatible statements of each migration after `released`; `folder` is on Python's path."""
    with postgres(prepared=True) as database:
        env = plain_environment() | {
            "DJANGO_SETTINGS_MODULE": "hetsched.project.settings", "DATABASE_URL": database.url, "SECRET_KEY": "x" * 40,
            "HETSCHED_DATA": str(folder / "data"), "PYTHONPATH": str(folder), "PATH": os.environ["PATH"],
        }  # fmt: skip
        command = python("-c", LINT, json.dumps(released))
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    return {name: [code for code in found if code in INCOMPATIBLE] for name, found in codes.items()}


def test_new_migrations_keep_the_previous_version_running(tmp_path: Path) -> None:
    found = incompatible(RELEASED, tmp_path)
    assert {name: codes for name, codes in found.items() if codes} == {}


def test_planted_statements_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "planted" / "migrations"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    before = "0000_first"
    (folder / f"{before}.py").write_text(MIGRATION.format(dependencies=[], operation=FIRST))
    for number, operation in enumerate(PLANTED):
        name = f"{number + 1:04}_next"
        text = MIGRATION.format(dependencies=[("planted", before)], operation=operation)
        (folder / f"{name}.py").write_text(text)
        before = name
    found = incompatible({"planted": "0000_first"}, tmp_path)
    assert dict(zip(PLANTED, found.values(), strict=True)) == PLANTED
