"""Who hands out the cards of this machine, and how a container is given one.

Rule: `advisory` is the default: another device plugin hands cards out and the control plane follows. With `enforce` the
agent's own plugin takes that plugin's resource name, so the other one must not run on the node. `auto` gives NVIDIA's
cards by CDI where a specification of them is installed, else by the variable that NVIDIA's container runtime reads.
AMD's cards are device nodes in any case.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hetsched.contracts.errors import InputError

from ..tree import Tree

MODES = ("advisory", "enforce", "off")
WAYS = ("auto", "cdi", "env", "nodes")
MOST_SLOTS = 100
_CDI_FOLDERS = ("etc/cdi", "var/run/cdi", "run/cdi")
_DEFAULT_STATE = "/var/lib/hetsched/agent"
_KUBELET = "/var/lib/kubelet/device-plugins"


class CardSettings(msgspec.Struct, frozen=True):
    """How cards are handed out; `slots` is how many containers may share one card.

    `slicing_directory` holds a slicing runtime's library on the host, empty where there is none.
    """

    mode: str = "advisory"
    slots: int = 1
    way: str = "auto"
    slicing_directory: str = ""
    state_directory: str = _DEFAULT_STATE
    kubelet_directory: str = _KUBELET


def card_settings(environment: Mapping[str, str]) -> CardSettings:
    """Read the settings of an environment. Raises: InputError `SettingInvalid`."""
    slots = environment.get("HETSCHED_AGENT_CARD_SLOTS", "1")
    if not (slots.isascii() and slots.isdigit() and 1 <= int(slots[:9]) <= MOST_SLOTS):
        raise InputError("SettingInvalid", f"HETSCHED_AGENT_CARD_SLOTS is a number from 1 to {MOST_SLOTS}")
    return CardSettings(
        mode=_one_of(environment, "HETSCHED_AGENT_CARDS", MODES),
        slots=int(slots),
        way=_one_of(environment, "HETSCHED_AGENT_CARD_WAY", WAYS),
        slicing_directory=environment.get("HETSCHED_AGENT_SLICING_DIRECTORY", "").rstrip("/"),
        state_directory=environment.get("HETSCHED_AGENT_STATE_DIRECTORY", _DEFAULT_STATE),
        kubelet_directory=environment.get("HETSCHED_AGENT_DEVICE_PLUGINS", _KUBELET),
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
