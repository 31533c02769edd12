"""`isa/`: choices, parsing of strings, and the requirements of an uploaded program, which is not stored."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hetsched.cli.isa.command import app as isa_command
from hetsched.isa import isa_document, parse
from hetsched.isa.isa_document import lattice
from tests.builders import a_node
from tests.situations import a_cluster
from web.api.nodes import isa
from web.api.whatif import what_if

from .conftest import Api

BINARY = "application/octet-stream"
# The header of a 64-bit RISC-V program whose flags say RVC and double floats: rv64gc and no more.
PROGRAM = (
    b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 243, 1, 0, 0, 0, 0x5, 64, 56, 0, 64, 0, 0)
)


@pytest.fixture
def viewer(api: Callable[..., Api], db: Any) -> Api:
    return api("viewer")


def test_names_have_their_implications_and_node_counts(viewer: Api) -> None:
    a_cluster(
        a_node("r1").isa("rv64gcv"), a_node("r2").isa("rv64gc"), a_node("a").isa("armv8.2-a"), a_node("u").isa(None)
    )
    found = viewer.get("isa/")
    riscv = {feature["name"]: feature for feature in found["riscv"]["features"]}
    assert {"d", "f", "zve64d"} <= set(riscv["v"]["implies"])
    assert (found["riscv"]["nodes"]["v"], found["riscv"]["nodes"]["c"]) == (1, 2)
    assert found["arm"]["nodes"]["asimd"] == 1
    assert found["unknown"] == 1
    assert "avx2" in next(base for base in found["x86"]["bases"] if base["name"] == "x86-64-v3")["extensions"]


def test_last_extension_of_a_long_string_is_counted(viewer: Api) -> None:
    names = [name for name in isa_document(parse("rva23s64_zvl512b_zvknhb_zvksg_zvkng"))["extensions"] if len(name) > 1]
    spelt_out = "_".join(("rv64imafdcv", *names))
    a_cluster(a_node("r1").isa(spelt_out))
    assert len(spelt_out) > 400
    assert viewer.get("isa/")["riscv"]["nodes"][names[-1]] == 1


def test_implied_only_name_is_also_implied_by_parsing() -> None:
    for feature in lattice()["riscv"]["features"]:
        try:
            meant = isa_document(
                parse(f"rv64gc_{feature['name']}" if len(feature["name"]) > 1 else f"rv64gc{feature['name']}")
            )
        except ValueError:
            continue  # not valid with that base
        assert set(feature["implies"]) <= {*meant["extensions"], "i"}


def test_string_means_the_same_as_in_the_command(viewer: Api) -> None:
    assert viewer.get("isa/parse/?text=rv64gc_zba") == isa_document(parse("rv64gc_zba"))
    problem = viewer("GET", "isa/parse/?text=rv64gc_nonsense", status=400).json()
    assert problem["code"] == "IsaUnknownExtension"


def test_uploaded_program_is_inspected_as_by_the_command(viewer: Api, tmp_path: Path) -> None:
    found = viewer("POST", "isa/inspect/?file=app", PROGRAM, kind=BINARY, status=200).json()
    (tmp_path / "app").write_bytes(PROGRAM)
    text = CliRunner().invoke(isa_command, ["inspect", str(tmp_path / "app"), "-o", "json"]).stdout
    assert found == {**json.loads(text), "file": "app"}
    assert found["machine"] == "riscv"
    assert viewer("POST", "isa/inspect/", b"no program", kind=BINARY, status=400).json()["code"] == "ElfMalformed"
    assert viewer("POST", "isa/inspect/", b"{}", status=415)


def test_upload_is_limited_and_deleted(viewer: Api, settings: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings.HETSCHED_BINARY_BYTES = 2_000
    problem = viewer("POST", "isa/inspect/", b"\x7fELF" + bytes(3_000), kind=BINARY, status=413).json()
    assert problem["code"] == "BodyTooLarge"
    assert problem["hint"] == "Run hetsched isa inspect on the file, or raise HETSCHED_BINARY_BYTES"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("nothing"))
    assert viewer("POST", "isa/inspect/", archive.getvalue(), kind=BINARY, status=400)
    assert list(tmp_path.iterdir()) == []


def test_inspections_and_what_ifs_have_separate_limits(operator: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "PATIENCE_SECONDS", 0.1)
    with what_if.simulation_slot(isa._INSPECTING):
        busy = operator("POST", "isa/inspect/", b"x", kind="application/octet-stream", status=503)
        assert busy.json()["code"] == "WhatIfBusy"
        with what_if.simulation_slot():
            pass
    operator("POST", "isa/inspect/", b"x", kind="application/octet-stream", status=400)


def test_archive_over_a_limit_returns_413_with_a_hint(operator: Api) -> None:
    member = tarfile.TarInfo("x")
    member.size = 8 << 30
    refused = operator(
        "POST",
        "isa/inspect/",
        gzip.compress(member.tobuf() + bytes(1 << 16)),
        kind="application/octet-stream",
        status=413,
    ).json()
    assert (refused["code"], bool(refused["hint"])) == ("OciTooLarge", True)
    assert "is larger than 2 GiB when unpacked" in refused["detail"]
