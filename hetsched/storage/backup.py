"""Backup of the whole database to one file, and restore.

A backup is a consistent snapshot of the database. A backup of SQLite can be restored into PostgreSQL and vice versa. A
truncated backup is detected.
Format: gzip of JSON lines: a header (migrations, last value of each ID sequence), for each table its columns and its
rows in primary key order, and finally the number of rows of each table. A restore needs a database with exactly the
same migrations and runs in one transaction. Sessions are not included.
Invariants: a restored database never reuses an ID; only the owner of the file can read it.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from django.apps import apps
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import connection, models
from django.db.migrations.recorder import MigrationRecorder

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import as_parts
from hetsched.storage.sealed_secrets import seal, unseal
from hetsched.storage.snapshot_read import consistent_reads
from hetsched.storage.write_lock import write_transaction

FORMAT = "hetsched-backup/1"
_PURPOSE = "backup"
_ROWS = 500
_CHUNK_BYTES = 1 << 20


class Header(msgspec.Struct, frozen=True):
    """Header of a backup.

    `sealed` is a known text encrypted with the server's SECRET_KEY, so that a restore can check that it has the same
    key. It is empty if the server has no key.
    """

    format: str
    migrations: list[str]
    numbered: dict[str, int]
    sealed: str


class BackupTable(msgspec.Struct, frozen=True):
    """Table and columns of the rows that follow."""

    table: str
    columns: list[str]


class BackupTrailer(msgspec.Struct, frozen=True):
    """Last line of a backup: the number of rows of each table."""

    rows: dict[str, int]


def write(path: Path) -> dict[str, int]:
    """Write the whole database to a file; return the number of rows of each table.

    Raises: OSError; the unfinished file is then removed.
    """
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as plain, gzip.open(plain, "wb", compresslevel=6) as file, consistent_reads():
            rows = _write(file)
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    return rows


def read(path: Path) -> tuple[dict[str, int], bool]:
    """Fill an empty database from a file; return row counts by table, and whether its secrets can be decrypted.

    Raises: InputError `BackupInvalid`, `BackupOfAnotherVersion`; the database is then unchanged.
    """
    try:
        with gzip.open(path, "rb") as file:
            while file.read(_CHUNK_BYTES):  # read to the end, where gzip verifies the checksum
                pass
            file.seek(0)
            header = _header(file)
            with write_transaction():
                rows = _read(file)
                _number(header.numbered)
    except (gzip.BadGzipFile, zlib.error, EOFError, msgspec.DecodeError) as error:
        raise InputError("BackupInvalid", f"the file is not a complete backup: {error}", place=str(path)) from None
    return rows, _opens(header.sealed)


def _models() -> list[type[models.Model]]:
    found = [
        model for model in apps.get_models(include_auto_created=True) if not issubclass(model, AbstractBaseSession)
    ]
    return sorted((model for model in found if model._meta.managed), key=lambda model: model._meta.db_table)


def _columns(model: type[models.Model]) -> list[Any]:
    return list(model._meta.concrete_fields)


def _migrations() -> list[str]:
    return sorted(".".join(key) for key in MigrationRecorder(connection).applied_migrations())


def _write(file: gzip.GzipFile) -> dict[str, int]:
    _line(file, Header(FORMAT, _migrations(), _numbered(), _seal()))
    counted: dict[str, int] = {}
    for model in _models():
        names = [field.attname for field in _columns(model)]
        table = model._meta.db_table
        _line(file, BackupTable(table, names))
        counted[table] = 0
        for row in model._default_manager.order_by("pk").values_list(*names).iterator(chunk_size=_ROWS):
            _line(file, row)
            counted[table] += 1
    _line(file, BackupTrailer(counted))
    return counted


def _line(file: gzip.GzipFile, document: Any) -> None:
    file.write(encode(document, hook=as_parts) + b"\n")


def _header(file: gzip.GzipFile) -> Header:
    header = msgspec.json.decode(file.readline(), type=Header)
    if header.format != FORMAT:
        raise InputError("BackupInvalid", f"the format of the backup is {header.format[:40]!r}, not {FORMAT!r}")
    own = _migrations()
    if header.migrations != own:
        other = sorted(set(header.migrations) ^ set(own))
        raise InputError(
            "BackupOfAnotherVersion",
            f"the backup and the database differ in {len(other)} migrations, the first is {other[0]}",
            hint="Restore the backup with the version that created it, then upgrade",
        )
    return header


def _read(file: gzip.GzipFile) -> dict[str, int]:
    """Replace all rows; foreign keys are checked at the end of the transaction."""
    known = {model._meta.db_table: model for model in _models()}
    with connection.cursor() as cursor:
        for table in known:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")  # noqa: S608
    counted: dict[str, int] = {}
    line = file.readline()
    while line.startswith(b'{"table":'):
        head = msgspec.json.decode(line, type=BackupTable)
        model = known.get(head.table)
        fields = {} if model is None else {field.attname: field for field in _columns(model)}
        if sorted(fields) != sorted(head.columns):
            raise InputError("BackupInvalid", f"the table {head.table[:80]!r} does not match this version")
        rows, line = _Rows(file), b""
        counted[head.table] = _insert(head, [fields[name] for name in head.columns], rows)
        line = rows.next_line
    if msgspec.json.decode(line, type=BackupTrailer).rows != counted or counted.keys() != known.keys():
        raise EOFError("the number of rows is wrong")
    return counted


class _Rows:
    """Iterator over rows that stops at the first line that is not a row, and keeps that line."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self.next_line = b""

    def __iter__(self) -> Iterator[list[Any]]:
        while (line := self._file.readline()).startswith(b"["):
            yield msgspec.json.decode(line, type=list[Any])
        self.next_line = line


def _insert(head: BackupTable, fields: list[Any], rows: Iterable[list[Any]]) -> int:
    quote = connection.ops.quote_name
    columns = ", ".join(quote(field.column) for field in fields)
    places = ", ".join(["%s"] * len(fields))
    statement = f"INSERT INTO {quote(head.table)} ({columns}) VALUES ({places})"  # noqa: S608
    count, rest = 0, iter(rows)
    with connection.cursor() as cursor:
        while some := list(islice(rest, _ROWS)):
            cursor.executemany(statement, [_stored(fields, row) for row in some])
            count += len(some)
    return count


def _stored(fields: list[Any], row: list[Any]) -> list[Any]:
    if len(row) != len(fields):
        raise EOFError("a row has the wrong number of columns")
    return [
        field.get_db_prep_save(value if isinstance(field, models.JSONField) else field.to_python(value), connection)
        for field, value in zip(fields, row, strict=True)
    ]


def _numbered() -> dict[str, int]:
    """Return the last ID assigned in each table."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT name, seq FROM sqlite_sequence")
            return {name: int(last) for name, last in cursor.fetchall() if not name.startswith("django_migrations")}
        found = {}
        for table, sequence in _sequences(cursor).items():
            cursor.execute(f"SELECT last_value, is_called FROM {sequence}")  # noqa: S608 - a name of the catalogue
            last, called = cursor.fetchone()
            found[table] = int(last) if called else 0
        return found


def _number(numbered: dict[str, int]) -> None:
    """Continue each ID sequence after the last ID of the backup."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            known = {model._meta.db_table for model in _models()}
            rows = [(table, last) for table, last in numbered.items() if table in known]
            cursor.executemany("DELETE FROM sqlite_sequence WHERE name = %s", [(table,) for table, _ in rows])
            cursor.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", rows)
            return
        for table, sequence in _sequences(cursor).items():
            if last := numbered.get(table, 0):
                cursor.execute("SELECT setval(%s, %s)", [sequence, last])


def _sequences(cursor: Any) -> dict[str, str]:
    found = {}
    for model in _models():
        if isinstance(model._meta.pk, models.AutoField):
            cursor.execute("SELECT pg_get_serial_sequence(%s, %s)", [model._meta.db_table, model._meta.pk.column])
            (sequence,) = cursor.fetchone()
            found[model._meta.db_table] = sequence
    return found


def _seal() -> str:
    try:
        return seal(FORMAT, purpose=_PURPOSE)
    except InputError:
        return ""


def _opens(sealed: str) -> bool:
    try:
        return not sealed or unseal(sealed, purpose=_PURPOSE) == FORMAT
    except InputError:
        return False
