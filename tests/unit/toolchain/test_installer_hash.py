"""The installer is executed, so a file with another hash than the lock's is rejected."""

import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest

from requirements import installer


@pytest.fixture
def no_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Remove uv from this machine, and make every download return an unpinned wheel."""

    def fetch(version: str) -> Path:
        wheel = tmp_path / f"uv-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"uv-{version}.data/scripts/uv", "#!/bin/sh\n")
        return wheel

    monkeypatch.setattr(installer, "TOOLS", tmp_path)
    monkeypatch.setattr(installer, "fetch_uv_wheel", fetch)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    return tmp_path


def test_altered_wheel_is_deleted_and_not_unpacked(no_uv: Path) -> None:
    with pytest.raises(installer.SetupError, match="does not match the hash"):
        installer.find_uv()

    assert list(no_uv.iterdir()) == []


def test_pinned_wheel_is_unpacked_as_an_executable(no_uv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, _ = installer.pinned_uv()
    known = hashlib.sha256(installer.fetch_uv_wheel(version).read_bytes()).hexdigest()
    monkeypatch.setattr(installer, "pinned_uv", lambda: (version, {known}))

    uv = installer.find_uv()

    assert uv.read_text() == "#!/bin/sh\n"
    assert uv.stat().st_mode & 0o111
