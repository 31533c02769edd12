"""Beat, run in a separate process with a broker in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.system.processes import ROOT, plain_environment

SEND = """
import json, sys
from datetime import UTC, datetime
from celery.beat import Scheduler
from hetsched.project.{module} import app

app.loader.init_worker()
scheduler = Scheduler(app)
for _, entry in sorted(scheduler.schedule.items()):
    scheduler.apply_async(entry)
sent = []
with app.connection_for_read() as connection:
    for queue in app.amqp.queues:
        while message := connection.default_channel.basic_get(queue):
            lifetime = datetime.fromisoformat(message.headers["expires"]) - datetime.now(UTC)
            names = ("task", "argsrepr", "kwargsrepr", "ignore_result", "celery_beat_task")
            headers = {{name: message.headers[name] for name in names}}
            body = message.decode()
            sent.append([queue, headers, round(lifetime.total_seconds(), -2), message.content_type, body])
print(json.dumps({{"sent": sent, "modules": list(sys.modules)}}))
"""
UNNEEDED = ("workers", "web", "django.db", "django.urls", "rest_framework", "numpy", "celery.bin", "hetsched.placement")


def send_all(module: str, data_dir: Path) -> dict[str, Any]:
    """Send each periodic task once with the application in `module`; return the messages and the loaded modules."""
    env = plain_environment() | {
        "DJANGO_SETTINGS_MODULE": "hetsched.project.settings", "HETSCHED_DATA": str(data_dir),
        "REDIS_URL": "memory://", "SECRET_KEY": "x" * 40,
    }  # fmt: skip
    command = [sys.executable, "-c", SEND.format(module=module)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_messages_equal_those_of_registered_tasks(tmp_path: Path) -> None:
    beat = send_all("beat", tmp_path)
    assert len(beat["sent"]) > 5
    assert beat["sent"] == send_all("celery", tmp_path)["sent"]


def test_beat_loads_no_tasks_models_or_views(tmp_path: Path) -> None:
    modules = send_all("beat", tmp_path)["modules"]
    assert not [name for name in modules if any(f"{name}.".startswith(f"{package}.") for package in UNNEEDED)]


def test_published_task_writes_a_heartbeat(tmp_path: Path) -> None:
    send_all("beat", tmp_path)
    assert (tmp_path / "pulse" / "beat").exists()
