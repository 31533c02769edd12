"""The JSON tables that are part of the package; each is read once.

Source: riscv_extensions.json, riscv_profiles.json, x86_levels.json and arm_features.json are the domain tables;
x86_flags.json and arm_hwcaps.json list other spellings and additional names that Linux prints in /proc/cpuinfo.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec


def load(name: str) -> dict[str, Any]:
    """Return the table `data/<name>.json`."""
    table: dict[str, Any] = msgspec.json.decode(files(__package__).joinpath("data", f"{name}.json").read_bytes())
    return table
