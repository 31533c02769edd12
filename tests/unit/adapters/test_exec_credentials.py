"""Programs for the credentials of a server's connections: allowed programs only, within limits, kept until the end."""

from __future__ import annotations

import json
import os
import sys
import time
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.exec_credentials import execution, kept_credential
from hetsched.adapters.exec_credentials.allowed_programs import ExecPolicy
from hetsched.adapters.exec_credentials.kept_credential import KeptCredential
from hetsched.adapters.exec_credentials.plugin import read_plugin
from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.connections.kubeconfig import Access, one_context
from hetsched.contracts.errors import InputError

from .kubeconfigs import certificate, key_of, kubeconfig

V1 = "client.authentication.k8s.io/v1"
SECRET = "canary-a71c"


class Program:
    """A program in Python that counts its runs; `policy` allows it."""

    def __init__(self, folder: Path, code: str) -> None:
        self.path = folder / "login"
        self.runs = folder / "runs"
        self.path.write_text(
            f"#!{sys.executable}\nimport json, os, sys\nopen({str(self.runs)!r}, 'a').write('x')\n{code}\n"
        )
        self.path.chmod(0o700)
        self.policy = ExecPolicy((str(self.path),), ("PROFILE",))

    def count(self) -> int:
        return len(self.runs.read_text()) if self.runs.exists() else 0

    def exec(self, **changes: Any) -> dict[str, Any]:
        return {"apiVersion": V1, "command": str(self.path), "interactiveMode": "Never", **changes}

    def kubeconfig(self, **changes: Any) -> dict[str, Any]:
        return kubeconfig(user={"exec": self.exec(**changes)})


def answer(**status: Any) -> str:
    document = {"apiVersion": V1, "kind": "ExecCredential", "status": status}
    return f"print({json.dumps(document)!r})"


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_credential, "_kept", {})


def bearer(configuration: Any) -> str:
    found: str = configuration.get_api_key_with_prefix("BearerToken")
    return found


def test_program_is_refused_by_default_and_the_reason_says_what_to_do(tmp_path: Path) -> None:
    program = Program(tmp_path, answer(token=SECRET))
    for document in (program.kubeconfig(), {**program.kubeconfig(), "kind": "Config"}):
        with pytest.raises(InputError) as refusal:
            from_kubeconfig(document)
        assert (refusal.value.code, refusal.value.place) == ("KubeconfigRefused", "users.user.exec")
        assert "HETSCHED_EXEC_CREDENTIALS" in refusal.value.hint
    assert program.count() == 0


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"command": "/bin/sh"}, ".command"),
        ({"command": "./login"}, ".command"),
        ({"command": "other"}, ".command"),
        ({"interactiveMode": "Always"}, ".interactiveMode"),
        ({"env": [{"name": "LD_PRELOAD", "value": "/tmp/x.so"}]}, ".env"),
        ({"env": [{"name": "PATH", "value": "/tmp"}]}, ".env"),
        ({"args": ["x"] * 65}, ""),
        ({"args": ["a\nb"]}, ""),
        ({"args": ["a\0b"]}, ""),
        ({"args": ["x" * 5000]}, ""),
        ({"env": [{"name": "PROFILE", "value": "x" * 5000}]}, ""),
        ({"apiVersion": "v1"}, ""),
    ],
)
def test_disallowed_programs_variables_and_sizes_are_rejected(
    tmp_path: Path, changes: dict[str, Any], place: str
) -> None:
    program = Program(tmp_path, answer(token=SECRET))
    with pytest.raises(InputError) as refusal:
        from_kubeconfig(program.kubeconfig(**changes), programs=program.policy)
    assert refusal.value.place == f"users.user.exec{place}"
    assert program.count() == 0


def test_name_selects_the_allowed_program_only_if_it_is_unique(tmp_path: Path) -> None:
    program = Program(tmp_path, answer(token=SECRET))
    configuration = from_kubeconfig(program.kubeconfig(command="login"), programs=program.policy)
    assert bearer(configuration) == f"Bearer {SECRET}"
    twice = ExecPolicy((*program.policy.programs, "/usr/bin/login"))
    with pytest.raises(InputError, match="does not allow"):
        from_kubeconfig(program.kubeconfig(command="login"), programs=twice)


def test_other_credentials_in_addition_to_a_program_are_refused(tmp_path: Path) -> None:
    program = Program(tmp_path, answer(token=SECRET))
    with pytest.raises(InputError, match="in addition to a program"):
        one_context(kubeconfig(user={"token": "t", "exec": program.exec()}), programs=program.policy)


def test_client_leaves_the_check_of_the_program_to_the_server(tmp_path: Path) -> None:
    program = Program(tmp_path, answer(token=SECRET))
    kept = one_context(program.kubeconfig(installHint="a long text"), programs=None)
    assert "installHint" not in kept["users"][0]["user"]["exec"]
    assert one_context(kept, programs=program.policy) == kept
    assert Access(kept).plugin == read_plugin(program.exec())
    assert program.count() == 0


def test_program_gets_a_minimal_environment_and_no_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", SECRET)
    monkeypatch.setenv("PROFILE", "server")
    seen = tmp_path / "seen"
    code = f"json.dump([dict(os.environ), sys.argv[1:], os.isatty(0)], open({str(seen)!r}, 'w'))\n{answer(token='t')}"
    program = Program(tmp_path, code)
    changes = {
        "args": ["$(touch pwned)", "a b"],
        "provideClusterInfo": True,
        "env": [{"name": "PROFILE", "value": "kc"}],
    }
    from_kubeconfig(program.kubeconfig(**changes), programs=program.policy)
    environment, arguments, is_terminal = json.loads(seen.read_text())
    expected = {"PATH", "LANG", "HOME", "PROFILE", "KUBERNETES_EXEC_INFO"}
    assert set(environment) - {"LC_CTYPE", "PWD", "SHLVL", "_"} == expected
    assert (arguments, is_terminal, environment["PROFILE"]) == (changes["args"], False, "kc")
    info = json.loads(environment["KUBERNETES_EXEC_INFO"])
    assert info["spec"]["interactive"] is False
    assert info["spec"]["cluster"]["server"] == "https://api.example.org:6443"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("sys.exit(3)", "exit code 3"),
        (f"print('{SECRET}', file=sys.stderr); sys.exit(1)", "exit code 1"),
        (f"print('{SECRET}')", "not an ExecCredential"),
        ("print('x' * (2 << 20))", "longer than"),
        ("import time; time.sleep(60)", "did not end"),
        ("import subprocess; subprocess.Popen(['sleep', '61'])", "did not end"),
        (answer(token=f"{SECRET}\nX-Remote-User: admin"), "one line"),
    ],
)
def test_failure_of_the_program_is_bounded_and_shows_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], code: str, text: str
) -> None:
    monkeypatch.setattr(kept_credential, "SECONDS", 1.5)
    program = Program(tmp_path, code)
    start = time.monotonic()
    with pytest.raises(InputError, match=text) as failure:
        from_kubeconfig(program.kubeconfig(), programs=program.policy)
    assert time.monotonic() - start < 30
    shown = capfd.readouterr()
    assert SECRET not in f"{failure.value} {failure.value.hint} {shown.out} {shown.err}"


def test_late_program_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"""
import subprocess, time
child = subprocess.Popen(["sleep", "60"])
open({str(pids)!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    with pytest.raises(execution.ProgramFailure):
        execution.run_program([sys.executable, "-c", script], os.environ, seconds=3)
    child, until = int(pids.read_text()), time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < until
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def kept(program: Program, clock: list[float]) -> KeptCredential:
    return KeptCredential(read_plugin(program.exec()), program.policy, {}, clock=lambda: clock[0])


def test_credential_is_kept_until_shortly_before_its_end(tmp_path: Path) -> None:
    end = datetime(2030, 1, 1, 12, tzinfo=UTC)
    program = Program(tmp_path, answer(token=SECRET, expirationTimestamp=end.isoformat()))
    clock = [end.timestamp() - 900]
    credential = kept(program, clock)
    assert [credential.current().token for _ in range(3)] == [SECRET] * 3
    clock[0] = end.timestamp() - 31
    credential.current()
    assert program.count() == 1
    clock[0] = end.timestamp() - 29
    credential.current()
    assert program.count() == 2
    assert SECRET not in f"{credential!r} {credential.current()!r}"


def test_rejected_credential_is_requested_again_at_most_every_ten_seconds(tmp_path: Path) -> None:
    program = Program(tmp_path, answer(token=SECRET))
    clock = [1000.0]
    credential = kept(program, clock)
    for _ in range(5):
        credential.current()
        credential.reject()
    assert program.count() == 1
    clock[0] += 10
    credential.current()
    credential.current()
    assert program.count() == 2


def test_failed_program_runs_again_after_a_pause(tmp_path: Path) -> None:
    program = Program(tmp_path, "sys.exit(1)")
    clock = [1000.0]
    credential = kept(program, clock)
    for _ in range(3):
        with pytest.raises(InputError, match="exit code 1"):
            credential.current()
    assert program.count() == 1
    program.path.write_text(f"#!{sys.executable}\n{answer(token=SECRET)}\n")
    clock[0] += 10
    assert credential.current().token == SECRET


def test_clients_of_one_connection_share_a_run(tmp_path: Path) -> None:
    program = Program(tmp_path, answer(token=SECRET))
    made = [from_kubeconfig(program.kubeconfig(), programs=program.policy) for _ in range(3)]
    assert {bearer(configuration) for configuration in made} == {f"Bearer {SECRET}"}
    assert program.count() == 1


def test_renewed_client_certificate_replaces_the_files(tmp_path: Path) -> None:
    pem, key = certificate("me")[0].decode(), pem_key("me")
    soon = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
    program = Program(tmp_path, answer(clientCertificateData=pem, clientKeyData=key, expirationTimestamp=soon))
    configuration = from_kubeconfig(program.kubeconfig(), programs=program.policy)
    api = Api(configuration)
    first = Path(configuration.cert_file)
    assert first.read_text() == pem
    assert first.stat().st_mode & 0o77 == 0
    (held,) = kept_credential._kept.values()
    held._ran_at = float("-inf")
    api._headers()
    second = Path(configuration.cert_file)
    assert second != first
    assert not first.exists()
    assert api._pool.connection_pool_kw["cert_file"] == str(second)
    assert program.count() == 2


def pem_key(name: str) -> str:
    return b64decode(key_of(name)).decode()


def test_failure_of_the_program_is_a_rejected_call(tmp_path: Path) -> None:
    program = Program(tmp_path, answer(token=SECRET))
    api = Api(from_kubeconfig(program.kubeconfig(), programs=program.policy))
    (held,) = kept_credential._kept.values()
    program.path.write_text(f"#!{sys.executable}\nraise SystemExit(7)\n")
    held.reject()
    held._ran_at = float("-inf")
    with pytest.raises(ApiFailure, match="exit code 7") as failure:
        api.get("/version")
    assert (failure.value.status, failure.value.reason) == (401, "ExecPluginFailed")
