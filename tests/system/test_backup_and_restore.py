"""A backup during writes restores into a new database, of either kind, with nothing lost or reserved twice."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.system.databases import postgres
from tests.system.processes import ROOT, plain_environment, python
from tests.unit.adapters.kubeconfigs import kubeconfig

pytestmark = pytest.mark.timeout(600)
KEY = "k" * 50
# Each script runs in its own process, on the database of its environment, and prints one JSON document.
BEGIN = """
import django; django.setup()
import json
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, submitted, ALICE
from django.contrib.auth import get_user_model
from django.utils import timezone
from hetsched.access.tokens import create_token
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.connections import connect
from hetsched.placement.actions import delete_finished_workloads, release, retention
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Decision, Pod
from workers import bind, schedule
"""
FILL = (
    BEGIN
    + """
retention.LATEST = 0
cluster = a_cluster(a_node("n1").gpus(2), a_node("n2").gpus(2), name="lab", kind="demo")
get_user_model().objects.create_superuser("ada", password="a long enough password")
token = create_token(role="operator", name="ci")[1]
live = create_cluster(name="live", kind="kubernetes", actor=ALICE)
connect(live, kubeconfig=KUBECONFIG, enrolled_namespaces=["team"], actor=ALICE, reason="test")
submitted(cluster, a_pod("whole").gpu(count=1), a_pod("huge").cpu(500))
schedule.run(cluster.pk); bind.run(cluster.pk)
old = submitted(cluster, a_pod("old"))
schedule.run(cluster.pk); bind.run(cluster.pk)
release(cluster.pk, [old.pods.get().pk], to=State.SUCCEEDED, reason="done")
delete_finished_workloads(cluster.pk, finished_before=timezone.now())
submitted(cluster, a_pod("waits").cpu(2))
print(json.dumps({"token": token, "last": Decision.objects.order_by("-id").values_list("id", flat=True).first()}))
"""
)
GO_ON = (
    BEGIN
    + """
from hetsched.inventory.models import Cluster, Connection
from hetsched.access.tokens import resolve
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.models import ForgottenDecision, Reservation, ReservedCard
import sys
cluster = Cluster.objects.get(name="lab")
before = list(Decision.objects.order_by("id").values_list("id", "verdict", "summary"))
for number in range(3):
    submitted(cluster, a_pod(f"new-{number}").gpu(count=1))
schedule.run(cluster.pk); bind.run(cluster.pk)
held = list(ReservedCard.objects.filter(active=True).order_by("node__name", "card_index")
            .values_list("node__name", "card_index", "reservation__pod__name"))
print(json.dumps({
    "before": before, "held": held, "violations": [str(one) for one in check_invariants()],
    "ids": list(Decision.objects.order_by("id").values_list("id", flat=True)),
    "forgotten": list(ForgottenDecision.objects.values_list("id", "summary")),
    "states": dict(Pod.objects.values_list("name", "state")),
    "installation": str(Connection.objects.get().installation),
    "epochs": [Cluster.objects.get(name="lab").leader_epoch, Connection.objects.get().follower_epoch],
    "user": get_user_model().objects.get(username="ada").check_password("a long enough password"),
    "token": resolve(sys.argv[1]) is not None,
}))
"""
)
OPENS = BEGIN + (
    """
from hetsched.contracts.errors import InputError
from hetsched.inventory.connections import api_of
from hetsched.inventory.models import Cluster
try:
    api_of(Cluster.objects.get(name="live")); told = ""
except InputError as error:
    told = error.code
print(json.dumps(told))
"""
)
KUBECONFIG = kubeconfig(user={"token": "canary-of-the-kubeconfig"})


class Server:
    """A server's machine: a database, and programs that use it."""

    def __init__(self, folder: Path, database: str = "", key: str = KEY) -> None:
        folder.mkdir(exist_ok=True)
        self.env = plain_environment() | {
            "HETSCHED_DATA": str(folder), "SECRET_KEY": key, "REDIS_URL": "memory://",
            "DJANGO_SETTINGS_MODULE": "hetsched.project.settings", "HETSCHED_LOG_LEVEL": "error",
            "PYTHONPATH": str(ROOT), **({"DATABASE_URL": database} if database else {}),
        }  # fmt: skip

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(python(*words), env=self.env, cwd=ROOT, capture_output=True, text=True, check=False)

    def script(self, text: str, *arguments: str) -> Any:
        done = self("-c", text.replace("KUBECONFIG", repr(KUBECONFIG)), *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def hetsched(self, *words: str | Path, code: int = 0) -> str:
        done = self("-m", "hetsched.cli", *map(str, words))
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def filled(self) -> Any:
        assert self("manage.py", "prepare").returncode == 0
        return self.script(FILL)


def check(went_on: Any, came_back: Any, filled: Any) -> None:
    """Assert that the restored server acts as the original did, on the same ledger, and reuses no number."""
    assert came_back["violations"] == went_on["violations"] == []
    assert came_back["before"] == went_on["before"]
    assert (came_back["user"], came_back["token"]) == (True, True)
    # Two nodes with two GPUs each: one GPU was reserved at the time of the backup, so three remain for three pods.
    names = [name for _, _, name in came_back["held"]]
    assert sorted(names) == ["new-0", "new-1", "new-2", "whole"]
    assert len({(node, card) for node, card, _ in came_back["held"]}) == 4
    assert came_back["states"] == went_on["states"]
    assert came_back["states"]["huge"] == "never-fits"
    # The ID of a deleted decision is never reused.
    assert [text for _, text in came_back["forgotten"]] == [text for _, text in went_on["forgotten"]]
    removed = {number for number, _ in came_back["forgotten"]}
    assert removed
    assert not removed & set(came_back["ids"])
    assert min(set(came_back["ids"]) - {number for number, _, _ in came_back["before"]}) > filled["last"]
    # For the cluster the restored server is another installation, with unused epochs.
    assert min(came_back["epochs"]) >= 1_000_000
    assert came_back["installation"] != went_on["installation"]


def test_new_database_continues_from_the_backup(tmp_path: Path) -> None:
    server, other, file = Server(tmp_path / "one"), Server(tmp_path / "other"), tmp_path / "backup.gz"
    filled = server.filled()
    server.hetsched("backup", file)
    assert file.stat().st_mode & 0o077 == 0
    assert "canary-of-the-kubeconfig" not in gzip.decompress(file.read_bytes()).decode()
    assert "invariant" not in other.hetsched("restore", file)
    check(server.script(GO_ON, filled["token"]), other.script(GO_ON, filled["token"]), filled)
    assert other.script(OPENS) == ""
    assert "DatabaseNotEmpty" in other.hetsched("restore", file, code=2)
    # With another key all rows are there, sealed values cannot be decrypted, and the command reports this immediately.
    third = Server(tmp_path / "third", key="another key " * 5)
    output = third.hetsched("restore", file)
    assert "SECRET_KEY differs from the key of the backup" in output
    assert "live" in output
    assert third.script(OPENS) == "SecretKeyChanged"


@pytest.mark.needs("postgres")
def test_from_one_kind_of_database_to_the_other_and_back(tmp_path: Path) -> None:
    with postgres() as database:
        small = Server(tmp_path / "small")
        large = Server(tmp_path / "large", database.url)
        again = Server(tmp_path / "again")
        filled = small.filled()
        small.hetsched("backup", tmp_path / "up.gz")
        large.hetsched("restore", tmp_path / "up.gz")
        large.hetsched("backup", tmp_path / "down.gz")
        again.hetsched("restore", tmp_path / "down.gz")
        went_on = small.script(GO_ON, filled["token"])
        check(went_on, large.script(GO_ON, filled["token"]), filled)
        check(went_on, again.script(GO_ON, filled["token"]), filled)
