"""Commands of an installation that does not have the packages of the extras."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples"
# The name under which a package is imported, if it is not its own.
MODULES = {
    "channels-redis": "channels_redis", "common-expression-language": "cel", "django-csp": "csp",
    "django-environ": "environ", "django-rest-knox": "knox", "djangorestframework": "rest_framework",
    "drf-spectacular": "drf_spectacular", "grpcio": "grpc", "nvidia-ml-py": "pynvml",
    "prometheus-client": "prometheus_client", "protobuf": "google.protobuf", "pyyaml": "yaml",
}  # fmt: skip
WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from hetsched.cli.__main__ import main
sys.argv[0] = "hetsched"
main()
"""


def modules(*locks: str) -> set[str]:
    """Return the modules of the packages in these files of `requirements`."""
    found = set()
    for lock in locks:
        lines = (ROOT / "requirements" / f"{lock}.in").read_text().splitlines()
        names = [re.split(r"[^\w-]", line)[0] for line in lines if not line.startswith(("#", "-"))]
        found |= {MODULES.get(name, name) for name in names}
    return found


def run(missing: set[str], *words: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command as if the modules `missing` were not installed."""
    command = [sys.executable, "-c", WITHOUT, ",".join(sorted(missing)), *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["look", "-f", EXAMPLES / "nodes.yaml"], 0),
        (["whatif", "-f", EXAMPLES / "gpu.yaml", "--cluster", EXAMPLES / "nodes.yaml", "--explain"], 0),
        (["check", "-f", EXAMPLES / "plain.yaml", "--cluster", EXAMPLES / "nodes.yaml"], 0),
        (["isa", "parse", "rv64gc"], 0),
        (["submit", "-f", EXAMPLES / "plain.yaml", "--server", "http://127.0.0.1:1", "--token", "hs_x"], 3),
        (["agent", "--once"], 0),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else None,
)
def test_offline_commands_and_client_need_no_extra(words: list[str | Path], code: int) -> None:
    done = run(modules("agent", "server") - {"redis"}, *words)
    assert done.returncode == code, done.stderr
    assert "ExtraMissing" not in done.stderr


def test_agent_once_needs_only_msgspec() -> None:
    done = run(modules("agent", "server", "base") - {"msgspec"}, "agent", "--once", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert '"isa"' in done.stdout


def test_agent_without_its_extra_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hs_x")
    words = ["--server", "https://127.0.0.1:1", "--token-file", tmp_path / "token", "--node", "n"]
    done = run({"grpc"}, "agent", *words)
    assert done.returncode == 2
    assert "error [ExtraMissing] this installation does not have the package grpc" in done.stderr
    assert "pip install 'hetsched[agent]'" in done.stderr


def test_mcp_without_its_extra_is_rejected() -> None:
    done = run({"mcp"}, "mcp", "--token", "hs_x")
    assert done.returncode == 2
    assert "pip install 'hetsched[mcp]'" in done.stderr


@pytest.mark.parametrize("command", ["standalone", "scheduler"])
def test_missing_server_is_reported_before_a_folder_is_created(command: str, tmp_path: Path) -> None:
    done = run({"django"}, command, "--data", tmp_path / "data")
    assert done.returncode == 2
    assert "error [ExtraMissing] this installation does not have the package django" in done.stderr
    assert "pip install 'hetsched[server]'" in done.stderr
    assert not (tmp_path / "data").exists()


def test_results_without_numba_are_equal() -> None:
    """Simulate a trace with GPUs under a policy that computes fragmentation."""
    words = ["simulate", "--cluster", EXAMPLES / "nodes.yaml", "--workload", EXAMPLES / "gpu.yaml", "-o", "json"]
    compiled, plain = (run(missing, *words, "--policy", "fgd") for missing in (set(), {"numba"}))
    assert compiled.returncode == 0, compiled.stderr
    speed = re.compile(r'"decisionsPerSecond": .+')
    assert speed.sub("", plain.stdout) == speed.sub("", compiled.stdout)
