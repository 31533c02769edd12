"""Who hands out the cards of this machine, and how a container is given one.

Rule: `auto` gives NVIDIA's cards by CDI where a specification of them is installed, else by the variable that NVIDIA's
container runtime reads. AMD's cards are device nodes in any case.
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
    """How cards are handed out; `slots` is how many containers may share one card.

    `slicing_directory` holds a slicing runtime's library on the host, empty where there is none.
    """

    slots: int = 1
    way: str = "auto"
    slicing_directory: str = ""
    state: Path = Path("/var/lib/hetsched-agent")
    kubelet: Path = Path("/var/lib/kubelet/device-plugins")


def card_settings(environment: Mapping[str, str], state: Path) -> CardSettings:
    """Read the settings of an environment. Raises: InputError `SettingInvalid`."""
    slots = environment.get("HETSCHED_AGENT_CARD_SLOTS", "1")
    if not (slots.isascii() and slots.isdigit() and 1 <= int(slots[:9]) <= MOST_SLOTS):
        raise InputError("SettingInvalid", f"HETSCHED_AGENT_CARD_SLOTS is a number from 1 to {MOST_SLOTS}")
    return CardSettings(
        slots=int(slots),
        way=_one_of(environment, "HETSCHED_AGENT_CARD_WAY", WAYS),
        slicing_directory=environment.get("HETSCHED_AGENT_SLICING_DIRECTORY", "").rstrip("/"),
        state=state,
    )


def _one_of(environment: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    chosen = environment.get(name, choices[0])
    if chosen not in choices:
        raise InputError("SettingInvalid", f"{name} is one of {', '.join(choices)}, not {chosen[:40]!r}")
    return chosen


def way_of(settings: CardSettings, tree: Tree) -> str:
    """Return how NVIDIA's cards are given on this machine: cdi, env or nodes."""
    if settings.way != "auto":
        return settings.way
    names = [name for folder in _CDI_FOLDERS for name in tree.names(folder)]
    return "cdi" if any(name.startswith("nvidia") and name.endswith((".yaml", ".json")) for name in names) else "env"
