"""Kubelet settings that affect placement, read from the kubelet's configuration file and flags.

The file is YAML, but the agent has no YAML parser and needs only a small part of the language. It reads the required
keys of block mappings in column 0 with plain or quoted scalars, and one level of such scalars below them. JSON files
are parsed as JSON. Any other syntax (flow mappings, anchors, tags, block scalars, several documents, a duplicate key)
makes the value of its key unknown and is reported as a problem. Other keys are skipped. Flags that kubeadm stores for
the kubelet override the file, as in the kubelet.
Source: kubelet.config.k8s.io/v1beta1; kubernetes cmd/kubelet options; YAML 1.2.2 chapters 7 and 8.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any, NamedTuple

from hetsched.contracts.messages.agent_report import MachineProblem

from ..tree import Tree

FOLDER = "/var/lib/kubelet"
SCALARS = frozenset(
    {
        "apiVersion", "kind", "cpuManagerPolicy", "topologyManagerPolicy", "topologyManagerScope",
        "memoryManagerPolicy", "reservedSystemCPUs",
    }
)  # fmt: skip
MAPS = frozenset({"cpuManagerPolicyOptions", "topologyManagerPolicyOptions", "kubeReserved", "systemReserved"})
_FLAGS = {
    "--cpu-manager-policy": "cpuManagerPolicy",
    "--cpu-manager-policy-options": "cpuManagerPolicyOptions",
    "--topology-manager-policy": "topologyManagerPolicy",
    "--topology-manager-policy-options": "topologyManagerPolicyOptions",
    "--topology-manager-scope": "topologyManagerScope",
    "--memory-manager-policy": "memoryManagerPolicy",
    "--reserved-cpus": "reservedSystemCPUs",
    "--kube-reserved": "kubeReserved",
    "--system-reserved": "systemReserved",
}
_LINE = re.compile(r"""(["']?)([A-Za-z][\w.-]{0,62})\1:(?:[ ]+(.*))?""", re.ASCII)
_QUOTED = re.compile(r"""(?:"([^"\\]*)"|'([^']*)')\s*(?:#.*)?""")
_PLAIN = re.compile(r"[^\s&*!|>{}\[\]%@`#,\"'?:-](?:[^:#]|:(?=\S)|(?<=\S)#)*|-(?=\S)[^:#]*", re.ASCII)
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_MOST_VALUE = 4096


class KubeletConfig(NamedTuple):
    """Settings of a kubelet; keys that are absent are not set, keys in `unknown` are set in an unsupported syntax."""

    scalars: dict[str, str]
    maps: dict[str, dict[str, str]]
    unknown: frozenset[str]


class _Unreadable(ValueError):
    """The whole document has an unsupported format."""


def read_config(tree: Tree) -> KubeletConfig | None:
    """Return the settings from the configuration file and the flags, or None if the file cannot be read."""
    path = f"{FOLDER}/config.yaml"
    text = tree.text(path, 256 * 1024)
    if text is None:
        return None
    try:
        config = _from_json(text) if text.startswith("{") else _from_yaml(text)
        if config.scalars.get("kind", "KubeletConfiguration") != "KubeletConfiguration":
            raise _Unreadable(f"the kind is {config.scalars['kind'][:60]}, not KubeletConfiguration")
    except _Unreadable as error:
        tree.problems.append(MachineProblem("KubeletConfigUnreadable", f"{path}: {error}", path))
        return None
    for key in sorted(config.unknown):
        what = f"{path}: the syntax of {key} is not supported; its value is unknown"
        tree.problems.append(MachineProblem("KubeletConfigUnreadable", what, path))
    return _with_flags(tree, config, f"{FOLDER}/kubeadm-flags.env")


def _from_json(text: str) -> KubeletConfig:
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise _Unreadable("the file is neither JSON nor supported YAML") from None
    if not isinstance(document, dict):
        raise _Unreadable("the document is not a JSON object")
    config = KubeletConfig({}, {}, frozenset())
    unknown = set()
    for key in SCALARS & document.keys():
        if isinstance(document[key], str):
            config.scalars[key] = document[key]
        elif document[key] is not None:
            unknown.add(key)
    for key in MAPS & document.keys():
        values = document[key]
        if isinstance(values, dict) and all(isinstance(value, str) for value in values.values()):
            config.maps[key] = values
        elif values is not None:
            unknown.add(key)
    return config._replace(unknown=frozenset(unknown))


def _from_yaml(text: str) -> KubeletConfig:
    scalars: dict[str, str] = {}
    maps: dict[str, dict[str, str]] = {}
    unknown: set[str] = set()
    seen: set[str] = set()
    key = ""  # the key in column 0 that the following lines belong to
    indent = 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or (stripped == "---" and not seen):
            continue
        if line[0] not in " \t":
            if line.startswith("- ") and key and key not in SCALARS | MAPS:
                continue  # a list may start in the same column as its key
            match = _LINE.fullmatch(line.rstrip())
            if match is None:
                raise _Unreadable(f"line {number} is not a key with a value")
            key, indent, value = match[2], 0, _scalar(match[3] or "")
            if key in seen:
                unknown.add(key)
            seen.add(key)
            if key in SCALARS:
                _state(scalars, unknown, key, value)
            elif key in MAPS:
                maps.setdefault(key, {})
                if value is None and (match[3] or "").strip() != "{}":
                    unknown.add(key)
        elif key in SCALARS:
            unknown.add(key)  # the value of the key continues on this line
        elif key in MAPS:
            match = _LINE.fullmatch(stripped)
            indent = indent or len(line) - len(line.lstrip(" "))
            value = _scalar(match[3] or "") if match else None
            level = len(line) - len(line.lstrip(" "))
            if match is None or value is None or level != indent or match[2] in maps[key]:
                unknown.add(key)
            else:
                maps[key][match[2]] = value
    known = {name: values for name, values in maps.items() if name not in unknown}
    stated = {name: value for name, value in scalars.items() if name not in unknown}
    return KubeletConfig(stated, known, frozenset(unknown & (SCALARS | MAPS)))


def _state(scalars: dict[str, str], unknown: set[str], key: str, value: str | None) -> None:
    if value is None:
        unknown.add(key)
    elif value not in _NULL:
        scalars[key] = value


def _scalar(text: str) -> str | None:
    """Return the value of a plain or quoted scalar ("" if it is empty), or None for any other syntax."""
    text = text.strip()
    if len(text) > _MOST_VALUE:
        return None
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        return quoted[1] if quoted[1] is not None else quoted[2]
    plain = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    return plain if not plain or _PLAIN.fullmatch(plain) else None


def _with_flags(tree: Tree, config: KubeletConfig, path: str) -> KubeletConfig:
    """Override settings of the file with the flags that kubeadm wrote for the kubelet."""
    if not tree.exists(path):
        return config
    text = tree.text(path)
    if text is None:
        return config
    try:
        words = [word for word in shlex.split(text, comments=True) for word in word.partition("=")[2].split()]
    except ValueError as error:
        tree.problems.append(MachineProblem("KubeletConfigUnreadable", f"{path}: {error}", path))
        return config
    stated: dict[str, str] = {}
    for word in words:
        flag, _, value = word.partition("=")
        if flag in _FLAGS and value:
            stated[_FLAGS[flag]] = value
    for key, value in stated.items():
        if key in SCALARS:
            config.scalars[key] = value
        else:
            config.maps[key] = dict(pair.split("=", 1) for pair in value.split(",") if "=" in pair)
    return config._replace(unknown=config.unknown - stated.keys())
