"""A damaged backup, or one of another version, changes nothing; a valid one restores every row."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from hetsched.contracts.errors import InputError
from hetsched.inventory.models import Cluster
from hetsched.storage import backup
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed, submitted

pytestmark = pytest.mark.django_db


@pytest.fixture
def file(tmp_path: Path) -> Path:
    cluster = a_cluster(a_node("n1").gpus(2))
    placed(cluster, "n1", a_pod("held").gpu(milli=300))
    submitted(cluster, a_pod("waits"))
    backup.write(tmp_path / "backup.gz")
    return tmp_path / "backup.gz"


def everything() -> dict[str, list[Any]]:
    """Return all rows as the database itself stores them."""
    found = {}
    with connection.cursor() as cursor:
        for model in backup._models():
            cursor.execute(f"SELECT * FROM {model._meta.db_table} ORDER BY {model._meta.pk.column}")
            found[model._meta.db_table] = [[_meant(value) for value in row] for row in cursor.fetchall()]
    return found


def _meant(value: Any) -> Any:
    """Parse JSON, so that its whitespace does not matter."""
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def test_every_row_is_restored_unchanged(file: Path) -> None:
    before = everything()
    Cluster.objects.update(name="changed", revision=99)
    rows, opens = backup.read(file)
    assert everything() == before
    assert rows == {table: len(found) for table, found in before.items()}
    assert opens


def _cut(lines: list[bytes]) -> list[bytes]:
    return lines[:-1]


def _a_row_less(lines: list[bytes]) -> list[bytes]:
    last_row = max(number for number, line in enumerate(lines) if line.startswith(b"["))
    return [*lines[:last_row], *lines[last_row + 1 :]]


def _a_column_less(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b'"leader_epoch",', b"") for line in lines]


def _another_format(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b"backup/1", b"backup/2"), *lines[1:]]


def _another_version(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b"0001_initial", b"0000_before", 1), *lines[1:]]


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (_cut, "BackupInvalid"),
        (_a_row_less, "BackupInvalid"),
        (_a_column_less, "BackupInvalid"),
        (_another_format, "BackupInvalid"),
        (_another_version, "BackupOfAnotherVersion"),
        (lambda lines: [b"{}"], "BackupInvalid"),
    ],
)
def test_incomplete_backup_changes_nothing(file: Path, broken: Callable[[list[bytes]], list[bytes]], code: str) -> None:
    before = everything()
    file.write_bytes(gzip.compress(b"".join(broken(gzip.decompress(file.read_bytes()).splitlines(keepends=True)))))
    with pytest.raises(InputError) as refused:
        backup.read(file)
    assert refused.value.code == code
    assert everything() == before


@pytest.mark.parametrize("keep", [0, 100, -10, -1])
def test_half_a_file_changes_nothing(file: Path, keep: int) -> None:
    before = everything()
    file.write_bytes(file.read_bytes()[:keep] or b"no backup")
    with pytest.raises(InputError, match="not a complete backup"):
        backup.read(file)
    assert everything() == before


def test_damaged_backup_changes_nothing(file: Path) -> None:
    before, whole = everything(), bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(InputError, match="not a complete backup"):
        backup.read(file)
    assert everything() == before


def test_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(backup, "_line", full)
    with pytest.raises(OSError, match="no space"):
        backup.write(tmp_path / "backup.gz")
    assert list(tmp_path.iterdir()) == []
