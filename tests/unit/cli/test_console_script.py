"""`hetsched` as a real process: version, help, pipes, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

from tests.builders import a_node, a_pod
from tests.unit.cli.calling import cluster_file, run, workload_file

PROGRAM = [sys.executable, "-m", "hetsched.cli"]


def call(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("hetsched 0.")
    assert run("version").stdout == run("--version").stdout
    text = run("--help").stdout
    for command in ("whatif", "simulate", "bench", "isa", "submit", "get", "explain", "wait", "cluster", "standalone"):
        assert command in text


def test_command_without_arguments_shows_the_help() -> None:
    result = run()
    assert result.exit_code == 2
    assert "Usage" in result.stdout
    assert result.stderr == ""


def test_whatif_from_a_pipe(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("web"), a_pod("vec").cpu(2).isa("rv64gcv"))
    ended = call("whatif", "-f", "-", "--cluster", cluster_file(tmp_path), "-o", "json", input=pods.read_text())
    assert ended.returncode == 10
    assert json.loads(ended.stdout)["verdict"] == "not-now"
    assert ended.stderr == ""


def test_unreadable_file_shows_no_traceback(tmp_path: Path) -> None:
    ended = call("whatif", "-f", tmp_path / "none.yaml", "--cluster", cluster_file(tmp_path))
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("error [FileUnreadable]")
    assert "Traceback" not in ended.stderr


def test_placement_loads_no_masked_arrays(tmp_path: Path) -> None:
    pods, nodes = workload_file(tmp_path, a_pod("web").gpu(1)), cluster_file(tmp_path, a_node("n1").gpus(2))
    said = "import atexit, sys; atexit.register(lambda: print('numpy.ma' in sys.modules))"
    script = f"{said}; from hetsched.cli.__main__ import main; main()"
    words = [sys.executable, "-c", script, "whatif", "-f", pods, "--cluster", nodes]
    ended = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.startswith("placed"), ended.stderr
    assert ended.stdout.splitlines()[-1] == "False"  # numpy.ma takes 70 ms of the first decision of each process


def test_offline_commands_load_no_web_framework() -> None:
    script = "import sys, hetsched.cli.main; print(sorted({'django', 'celery', 'numpy', 'httpx'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "[]"
