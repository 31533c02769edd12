"""Settings of a production deployment, read in a separate process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.system.processes import ROOT, plain_environment, python

NAMES = (
    "DEBUG", "SESSION_COOKIE_SECURE", "SESSION_COOKIE_NAME", "CSRF_COOKIE_SECURE", "CSRF_COOKIE_NAME",
    "SECURE_SSL_REDIRECT", "SECURE_HSTS_SECONDS", "SECURE_PROXY_SSL_HEADER", "DATABASES", "CELERY_BROKER_URL",
    "CELERY_BROKER_TRANSPORT_OPTIONS", "CHANNEL_LAYERS",
)  # fmt: skip
SHOW = f"""
import json
from django.conf import settings
print(json.dumps({{name: getattr(settings, name, None) for name in {NAMES}}}, default=str))
"""


def run(tmp_path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = plain_environment() | {"HETSCHED_DATA": str(tmp_path), "DJANGO_SETTINGS_MODULE": "hetsched.project.settings"}
    return subprocess.run(python(*words), env=env | variables, cwd=ROOT, capture_output=True, text=True)


def read(tmp_path: Path, **variables: str) -> dict[str, Any]:
    done = run(tmp_path, "-c", SHOW, **variables)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


PRODUCTION = {
    "DATABASE_URL": "postgres://me:secret@database/hetsched",
    "REDIS_URL": "rediss://redis:6379/0",
    "SECRET_KEY": "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRS",
    "ALLOWED_HOSTS": "hetsched.example",
}


@pytest.mark.parametrize("https", ["on", "proxy"])
def test_tls_configuration_has_no_warnings(tmp_path: Path, https: str) -> None:
    done = run(
        tmp_path, "manage.py", "check", "--deploy", "--fail-level", "WARNING", HETSCHED_HTTPS=https, **PRODUCTION
    )
    assert done.returncode == 0, done.stderr


def test_with_tls_cookies_are_bound_to_the_host(tmp_path: Path) -> None:
    settings = read(tmp_path, HETSCHED_HTTPS="proxy", **PRODUCTION)
    assert settings["SESSION_COOKIE_SECURE"]
    assert settings["CSRF_COOKIE_SECURE"]
    assert settings["SESSION_COOKIE_NAME"].startswith("__Host-")
    assert settings["CSRF_COOKIE_NAME"].startswith("__Host-")
    assert settings["SECURE_PROXY_SSL_HEADER"] is None, "Django would trust it from any peer"


def test_silent_redis_times_out(tmp_path: Path) -> None:
    settings = read(tmp_path, **PRODUCTION)
    (channel,) = settings["CHANNEL_LAYERS"]["default"]["CONFIG"]["hosts"]
    for options in (channel, settings["CELERY_BROKER_TRANSPORT_OPTIONS"]):
        assert options["socket_connect_timeout"] <= 10
        assert options["socket_timeout"] <= 10


def test_forwarded_header_is_trusted_only_from_a_proxy(tmp_path: Path) -> None:
    assert read(tmp_path, HETSCHED_HTTPS="on", **PRODUCTION)["SECURE_PROXY_SSL_HEADER"] is None


def test_without_tls_people_can_still_log_in(tmp_path: Path) -> None:
    settings = read(tmp_path)
    assert not settings["DEBUG"]
    assert not settings["SESSION_COOKIE_SECURE"]
    assert not settings["SECURE_SSL_REDIRECT"]


def test_postgres_runs_behind_a_pool(tmp_path: Path) -> None:
    database = read(tmp_path, HETSCHED_DB_POOL="7", **PRODUCTION)["DATABASES"]["default"]
    assert database["OPTIONS"]["pool"]["max_size"] == 7
    assert database["CONN_MAX_AGE"] == 0  # a pool rejects any other value


def test_sqlite_queues_writers_instead_of_failing(tmp_path: Path) -> None:
    options = read(tmp_path)["DATABASES"]["default"]["OPTIONS"]
    assert options["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in options["init_command"]


PROGRAMS = {
    "manage.py": ["manage.py", "check"],
    "watch": ["manage.py", "watch"],
    "worker": ["-m", "celery", "-A", "hetsched.project.celery:app", "worker"],
    "beat": ["-m", "hetsched.project.beat"],
    "uvicorn": ["-m", "uvicorn", "hetsched.project.asgi:application"],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_process_refuses_a_wrong_variable_alike(tmp_path: Path, program: str) -> None:
    done = run(tmp_path, *PROGRAMS[program], HETSCHED_BATCH="many")
    assert done.returncode == 2
    assert done.stderr == (
        "hetsched: HETSCHED_BATCH: 'many' is not a whole number from 1 to 10000 [EnvInvalid]. Default: 500\n"
    )


def test_beat_refuses_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path, *PROGRAMS["beat"], HETSCHED_DATA=str(tmp_path / "file" / "data"))
    assert done.returncode == 1
    assert done.stderr == f"hetsched: HETSCHED_DATA: {tmp_path}/file/data is not a writable folder [DataDirInvalid]\n"


@pytest.mark.parametrize("program", ["manage.py", "watch", "worker"])
def test_every_process_rejects_an_invalid_deployment_alike(tmp_path: Path, program: str) -> None:
    done = run(tmp_path, *PROGRAMS[program], **{**PRODUCTION, "SECRET_KEY": ""})
    assert done.returncode == 1
    assert done.stderr.startswith("SystemCheckError: System check identified some issues:")
    assert "(hetsched.E001) SECRET_KEY is not set" in done.stderr
