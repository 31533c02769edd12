"""A later version of the product: a copy of this checkout with another version and expanding migrations.

The migrations add a nullable column and a column with a default in the database to the tables that every decision
writes, one table each. These are the changes that docs/how-to/migrations.md allows in one release.
"""

from __future__ import annotations

import compileall
import re
import shutil
from pathlib import Path

from tests.system.processes import ROOT

VERSION = "99.0.0"
_FOLDERS = ("hetsched", "web", "workers", "templates", "static", "locale", "deploy/crds")
_TABLES = ("Workload", "Pod", "Decision", "Reservation")
_FIELDS = {
    "next_note": "models.CharField(max_length=20, null=True)",
    "next_count": "models.IntegerField(default=7, db_default=7)",
}
_MIGRATION = """
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("placement", "{last}")]
    operations = [
{operations}
    ]
"""
_MODELS = """

from django.db import models
for model in ({tables}):
{fields}
"""


def copy_next_version(folder: Path) -> Path:
    """Write the later version into `folder`; return the value of PYTHONPATH with which Python imports it."""
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    package = folder / "hetsched" / "__init__.py"
    package.write_text(re.sub(r'__version__ = ".+"', f'__version__ = "{VERSION}"', package.read_text()))
    migrations = folder / "hetsched" / "placement" / "migrations"
    last = max(file.stem for file in migrations.glob("0*.py") if "squashed" not in file.stem)
    for number, table in enumerate(_TABLES):
        operations = "".join(
            f'        migrations.AddField("{table.lower()}", "{name}", {field}),\n' for name, field in _FIELDS.items()
        )
        name = f"{9000 + number}_next_{table.lower()}"
        (migrations / f"{name}.py").write_text(_MIGRATION.format(last=last, operations=operations.rstrip()))
        last = name
    fields = "\n".join(f'    {field}.contribute_to_class(model, "{name}")' for name, field in _FIELDS.items())
    models = folder / "hetsched" / "placement" / "models" / "__init__.py"
    models.write_text(models.read_text() + _MODELS.format(tables=", ".join(_TABLES), fields=fields))
    compileall.compile_dir(folder, quiet=1)  # as the image does, so that starting processes do not compile
    return folder
