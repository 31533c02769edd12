"""The kill points of the chaos tests name functions that exist."""

from __future__ import annotations

from pathlib import Path

from tests.system.faulty import install_faults


def test_every_kill_point_names_an_existing_function(tmp_path: Path) -> None:
    install_faults({"die": [], "folder": str(tmp_path)})  # resolves all functions, and wraps none
