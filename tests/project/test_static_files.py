"""Collected static files have names with digests, and modules import each other by these names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from django.core.management import call_command

from hetsched.project import static_files

DIGEST = r"\.[0-9a-f]{12}\."


def test_collected_files_are_found_by_their_digest(settings: Any, tmp_path: Path) -> None:
    settings.STATIC_ROOT = str(tmp_path)
    assert static_files.are_stale()
    static_files.collect()
    assert not static_files.are_stale()

    modules = [path for path in (tmp_path / "js").iterdir() if path.suffix == ".js"]
    imported = [name for path in modules for name in re.findall(r'(?:from|import) "\./([^"]+)"', path.read_text())]
    assert len(set(imported)) > 10
    assert [name for name in imported if not (tmp_path / "js" / name).is_file()] == []
    assert [path.name for path in modules if not re.search(DIGEST, path.name)] == []
    assert {path.with_name(f"{path.name}.gz").is_file() for path in modules if path.stat().st_size > 2000} == {True}


def test_collectstatic_leaves_nothing_to_collect(settings: Any, tmp_path: Path) -> None:
    """Regression: in the image the folder is read-only, and the first start failed to collect the files again."""
    settings.STATIC_ROOT = str(tmp_path)
    call_command("collectstatic", verbosity=0, interactive=False)
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    assert not static_files.are_stale()
