"""A wheel of the source distribution, installed outside the checkout, serves pages and runs commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.processes import ROOT, plain_environment, wait_until
from tests.system.test_standalone import Standalone, log_in, standalone, status

pytestmark = pytest.mark.timeout(300)
SOURCES = ("hetsched", "web", "workers", "templates", "static", "locale", "deploy/crds", "requirements")
DATA = {".css", ".html", ".json"}
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md")


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, env=plain_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution and the wheel of it, install that, and return the installed `hetsched`.

    The environment contains the dependencies of hetsched, but not the editable install of the checkout: Python reads
    `.pth` files only from its own site-packages.
    """
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", folder, cwd=source)
    shutil.rmtree(source)
    (distribution,) = folder.glob("hetsched-*.tar.gz")
    run(*pip, "wheel", *options, "--wheel-dir", folder, distribution, cwd=folder)
    environment = folder / "environment"
    venv.create(environment)
    libraries = environment / f"lib/python{sysconfig.get_python_version()}/site-packages"
    (libraries / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (wheel,) = folder.glob("hetsched-*.whl")
    run(*pip, "--python", environment / "bin/python", "install", *options, wheel, cwd=folder)
    return environment / "bin" / "hetsched"


@pytest.fixture(scope="module")
def server(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("server")
    with standalone(folder / "data", program=[str(program)], cwd=folder) as started:
        started.wait_until_ready()
        yield started


def test_code_is_imported_from_the_wheel(program: Path) -> None:
    python = program.with_name("python")
    found = run(python, "-c", "import hetsched, web, workers; print(hetsched.__file__)", cwd=program.parent)
    assert Path(found.strip()).is_relative_to(program.parents[1])


def test_data_files_of_packages_are_in_the_wheel(program: Path) -> None:
    """Regression: the templates of the admin's forms and of the API page were missing, and their pages answered 500."""
    installed = next(program.parents[1].glob("lib/python*/site-packages"))
    packages = [ROOT / name for name in ("hetsched", "web", "workers")]
    sources = {file for package in packages for file in package.rglob("*.*") if file.suffix in DATA}
    assert {file for file in sources if not (installed / file.relative_to(ROOT)).is_file()} == set()
    assert {file.suffix for file in sources} == DATA


def test_login_opens_the_fleet_page(server: Standalone) -> None:
    wait_until(server.password, what=server.said)
    password = server.password()
    assert password
    browser = log_in(server.url, password)
    with browser.open(f"{server.url}/", timeout=20) as page:
        text = page.read().decode()
    assert 'id="content"' in text
    files = set(re.findall(r'"(/static/[^"]+)"', text))
    assert len(files) > 3
    assert {status(f"{server.url}{file}") for file in files} == {200}
    browser.addheaders = [("Accept-Language", "zh-hans")]
    with browser.open(f"{server.url}/nodes/", timeout=20) as page:
        assert 'lang="zh-hans"' in page.read().decode()
    for path in ("/api/v1/docs", "/admin/inventory/cluster/add/", "/admin/policies/policy/"):
        with browser.open(f"{server.url}{path}", timeout=60) as page:
            assert page.status == 200
    assert status(f"{server.url}/readyz") == 200


def test_commands_run_offline(program: Path, tmp_path: Path) -> None:
    examples = ROOT / "docs" / "examples"
    words = ["--cluster", examples / "nodes.yaml", "--workload", examples / "gang.yaml", "-o", "json"]
    assert '"placements"' in run(program, "simulate", *words, cwd=tmp_path)
    assert run(program, "crds", cwd=tmp_path).count("kind: CustomResourceDefinition\n") == 3
