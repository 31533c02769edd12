"""Settings of the GPU device plugin.

`auto` passes NVIDIA GPUs by CDI if a CDI specification for them is installed, otherwise by the variable that NVIDIA's
container runtime reads. AMD GPUs are always passed as device nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from hetsched.contracts.errors import InputError

from ..tree import Tree

WAYS = ("auto", "cdi", "env", "nodes")
MOST_SLOTS = 100
_CDI_FOLDERS = ("etc/cdi", "var/run/cdi", "run/cdi")


class CardSettings(msgspec.Struct, frozen=True):
    """Settings of the GPU assignment; `slots` is the number of containers that may share one GPU.

    `slicing_directory` is the host directory of a slicing runtime's library, or empty if there is none.
    """

    slots: int = 1
    way: str = "auto"
    slicing_directory: str = ""
    state: Path = Path("/var/lib/hetsched-agent")
    kubelet: Path = Path("/var/lib/kubelet/device-plugins")


def card_settings(environment: Mapping[str, str], state: Path) -> CardSettings:
    """Read the settings from environment variables. Raises: InputError `SettingInvalid`."""
    slots = environment.get("HETSCHED_AGENT_CARD_SLOTS", "1")
    if not (slots.isascii() and slots.isdigit() and 1 <= int(slots[:9]) <= MOST_SLOTS):
        raise InputError("SettingInvalid", f"HETSCHED_AGENT_CARD_SLOTS must be a whole number from 1 to {MOST_SLOTS}")
    return CardSettings(
        slots=int(slots),
        way=_one_of(environment, "HETSCHED_AGENT_CARD_WAY", WAYS),
        slicing_directory=environment.get("HETSCHED_AGENT_SLICING_DIRECTORY", "").rstrip("/"),
        state=state,
    )


def _one_of(environment: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    chosen = environment.get(name, choices[0])
    if chosen not in choices:
        raise InputError("SettingInvalid", f"{name} must be one of {', '.join(choices)}, not {chosen[:40]!r}")
    return chosen


def resolve_way(settings: CardSettings, tree: Tree) -> str:
    """Return how NVIDIA GPUs are passed to containers on this machine: cdi, env or nodes."""
    if settings.way != "auto":
        return settings.way
    names = [name for folder in _CDI_FOLDERS for name in tree.names(folder)]
    return "cdi" if any(name.startswith("nvidia") and name.endswith((".yaml", ".json")) for name in names) else "env"
