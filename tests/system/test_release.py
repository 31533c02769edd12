"""`dev.py release`: complete artefacts of HEAD, with equal digests in two builds."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from deploy.release import manual
from deploy.release.__main__ import ReleaseError, read_version
from tests.parts import require
from tests.system.processes import ROOT, plain_environment

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the artefacts of HEAD twice; return their folder."""
    out = tmp_path_factory.mktemp("release") / "dist"
    command = [sys.executable, "-m", "deploy.release", "--check", "--no-platforms", "--out", out]
    done = subprocess.run(command, cwd=ROOT, env=plain_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "two builds of 6 artefacts are equal" in done.stderr
    return out


def test_checksums_match(release: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=release, capture_output=True)
    assert done.returncode == 0, done.stderr
    listed = re.findall(r"^\S+  (\S+)$", (release / "SHA256SUMS").read_text(), re.MULTILINE)
    assert set(listed) == {file.name for file in release.iterdir()} - {"SHA256SUMS"}


def test_chart_package_renders_like_the_folder(release: Path) -> None:
    helm = require("helm")
    (package,) = release.glob("hetsched-chart-*.tgz")
    rendered = [
        subprocess.run([helm, "template", "x", chart, "--include-crds"], capture_output=True, text=True, check=False)
        for chart in (package, ROOT / "deploy" / "helm" / "hetsched")
    ]
    assert [done.returncode for done in rendered] == [0, 0]
    assert rendered[0].stdout == rendered[1].stdout
    assert rendered[0].stdout.count("kind: CustomResourceDefinition\n") == 3


def test_manual_has_a_page_for_each_command_and_its_options(release: Path) -> None:
    (archive,) = release.glob("hetsched-shell-*.tar.gz")
    with tarfile.open(archive) as members:
        files = {Path(name).name: members.extractfile(name) for name in members.getnames()}
        pages = {name: file.read().decode() for name, file in files.items() if name.endswith(".1") and file}
    assert {"hetsched.1", "hetsched-look.1", "hetsched-policy-golden-check.1"} <= pages.keys()
    assert set(manual.SHELLS.values()) <= files.keys()
    assert r"\-\-fail\-on" in pages["hetsched-look.1"]
    assert r"kubectl get nodes,pods \-A \-o yaml | hetsched look" in pages["hetsched-look.1"]
    requests = {line.split()[0] for page in pages.values() for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".B", ".BR", ".TP", ".PP", ".nf", ".fi"}


def test_wheel_declares_the_server_as_an_extra(release: Path) -> None:
    (wheel,) = release.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        needed = re.findall(r"^Requires-Dist: (.+)$", archive.read(name).decode(), re.MULTILINE)
    base = {re.split(r"[^\w-]", line)[0] for line in needed if "extra ==" not in line}
    assert {"msgspec", "typer", "numpy"} <= base
    assert not {"django", "celery", "grpcio"} & base
    assert any(line.startswith("django<") and 'extra == "server"' in line for line in needed)
    assert any(line.startswith("grpcio;") and 'extra == "agent"' in line for line in needed)


def test_different_versions_are_rejected(tmp_path: Path) -> None:
    for name in ("hetsched/__init__.py", "pyproject.toml", "deploy/helm/hetsched/Chart.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    version = read_version(tmp_path)
    chart = tmp_path / "deploy/helm/hetsched/Chart.yaml"
    chart.write_text(chart.read_text().replace(f"appVersion: {version}", "appVersion: 9.9.9"))
    with pytest.raises(ReleaseError, match=re.escape("'deploy/helm/hetsched/Chart.yaml': '9.9.9'")):
        read_version(tmp_path)
