"""`hetsched isa …` as users run it: documents, exit codes, streams, and every example of the public contract."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hetsched.cli.isa.command import app
from hetsched.isa import SOURCES

RV64GC = ["a", "c", "d", "f", "m", "zaamo", "zalrsc", "zca", "zcd", "zicsr", "zifencei", "zmmul"]


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def document(result: Result) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_parse_prints_one_document() -> None:
    result = run("parse", "rv64gc", "-o", "json")
    assert result.exit_code == 0
    assert document(result) == {
        "input": "rv64gc",
        "arch": "riscv",
        "xlen": 64,
        "base": "i",
        "extensions": RV64GC,
        "canonical": "rv64imafdc_zicsr_zifencei",
    }


@pytest.mark.parametrize(
    ("text", "base", "canonical"),
    [
        ("RV64IMFDV", "i", "rv64imfdv"),
        ("rv64gc_zba_zbb", "i", "rv64imafdc_zicsr_zifencei_zba_zbb"),
        ("rva22u64", "i", "rva22u64"),
        ("rva22u64_v", "i", "rva22u64_v"),
        ("amd64", "x86-64-v1", "x86-64-v1"),
        ("x86-64-v4", "x86-64-v4", "x86-64-v4"),
        ("X86", "x86-64-v1", "x86-64-v1"),
        ("arm64", "armv8.0-a", "armv8.0-a"),
        ("ARM64", "armv8.0-a", "armv8.0-a"),
        ("armv8.2-a", "armv8.2-a", "armv8.2-a"),
        ("x86-64-v3+avx512f", "x86-64-v3", "x86-64-v3+avx512f"),
        ("x86-64-v3_avx512f", "x86-64-v3", "x86-64-v3+avx512f"),
        ("arm64+sve2", "armv8.0-a", "armv8.0-a+sve2"),
    ],
)
def test_every_example_of_a_requirement_is_read(text: str, base: str, canonical: str) -> None:
    parsed = document(run("parse", text, "-o", "json"))
    assert (parsed["base"], parsed["canonical"]) == (base, canonical)
    assert parsed["extensions"] == sorted(parsed["extensions"])


@pytest.mark.parametrize(("label", "canonical"), [("ARM", "armv8.0-a"), ("RISC-V", "rv64i"), ("risc-v", "rv64i")])
def test_architecture_names_of_the_publication_are_parsed(label: str, canonical: str) -> None:
    parsed = document(run("parse", label, "-o", "json"))
    assert (parsed["input"], parsed["canonical"]) == (label, canonical)
    assert document(run("check", label, canonical, "-o", "json"))["satisfied"]
    assert document(run("check", canonical, label, "--source", "node-label", "-o", "json"))["satisfied"]
    # Machine sources do not use these names.
    assert run("parse", label, "--source", "cpuinfo").exit_code == 2


def test_versions_and_dropped_names_are_listed() -> None:
    parsed = document(run("parse", "rv64i2p1mvsu", "--source", "cpuinfo", "-o", "json"))
    assert (parsed["versions"], parsed["untrusted"]) == ({"i": "2.1"}, ["v"])


def test_invalid_string_exits_2_with_its_code() -> None:
    result = run("parse", "rv64gc_zfoo", "-o", "json")
    assert result.exit_code == 2
    assert document(result)["input"] == "rv64gc_zfoo"
    assert document(result)["error"]["code"] == "IsaUnknownExtension"
    assert document(result)["error"]["message"]


def test_invalid_string_prints_one_error_in_text_mode() -> None:
    result = run("parse", "rv64gc_zfoo")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "IsaUnknownExtension" in result.stderr


def test_parse_prints_text_too() -> None:
    result = run("parse", "rva22u64_v")
    assert result.exit_code == 0
    assert "rva22u64_v" in result.stdout


def test_check_prints_affinity_and_exits_0() -> None:
    result = run("check", "RV64IMF", "RV64IMFD", "-o", "json")
    assert result.exit_code == 0
    assert document(result) == {"satisfied": True, "missing": [], "affinity": 0.75, "mode": "native"}


def test_check_prints_missing_items_and_exits_1() -> None:
    result = run("check", "rv64gcv", "rv64gc", "-o", "json")
    assert result.exit_code == 1
    assert document(result) == {"satisfied": False, "missing": ["v"], "affinity": None, "mode": None}


def test_check_in_text() -> None:
    assert "0.75" in run("check", "RV64IMF", "RV64IMFD").stdout
    assert "missing: v" in run("check", "rv64gcv", "rv64gc").stdout


@pytest.mark.parametrize("pair", [("banana", "rv64gc"), ("rv64gc", "banana")])
def test_check_of_a_wrong_string_exits_2(pair: tuple[str, str]) -> None:
    result = run("check", *pair, "-o", "json")
    assert result.exit_code == 2
    assert document(result)["input"] == "banana"


def test_source_option_applies_to_the_offered_string() -> None:
    # A node's string gets zifencei, a pod's does not; the kernel's draft-era v is dropped.
    assert run("check", "rv64g", "rv64imafd").exit_code == 1
    assert run("check", "rv64g", "rv64imafd", "--source", "node-label").exit_code == 0
    assert run("check", "rv64gcv", "rv64imafdcvsu", "--source", "cpuinfo").exit_code == 1
    assert run("check", "rv64imafdcvsu", "rv64gcv", "--source", "cpuinfo").exit_code == 2


def test_missing_optional_extensions_of_a_profile_are_added() -> None:
    offered = "rv64gcb_zfhmin_zicbom_zicboz_zicntr_zihpm"
    result = run("check", "rva22u64", offered, "-o", "json")
    assert result.exit_code == 0
    assert "zicbop" in document(result)["unreported"]


def test_check_without_offered_is_a_usage_error() -> None:
    assert run("check", "rv64gc").exit_code == 2


def test_unknown_source_exits_2() -> None:
    assert run("parse", "rv64gc", "--source", "rumour").exit_code == 2


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_of_the_lattice_can_be_named(source: str) -> None:
    assert document(run("parse", "rv64gc", "--source", source, "-o", "json"))["arch"] == "riscv"


def test_parse_answers_every_line_in_place() -> None:
    result = run("parse", "-", stdin="rv64gc\nbanana\n\nX86\r\n")
    assert result.exit_code == 0
    answers = lines(result)
    assert [answer["input"] for answer in answers] == ["rv64gc", "banana", "", "X86"]
    assert answers[0]["canonical"] == "rv64imafdc_zicsr_zifencei"
    assert [answer["error"]["code"] for answer in answers[1:3]] == ["IsaUnknownArchitecture", "IsaEmpty"]


def test_check_answers_every_line_in_place() -> None:
    result = run("check", "-", stdin="RV64IMF\tRV64IMFD\nrv64gcv\trv64gc\nrv64gc\nbanana\trv64gc\n")
    assert result.exit_code == 0
    answers = lines(result)
    assert [answer.get("satisfied") for answer in answers] == [True, False, None, None]
    assert answers[1]["missing"] == ["v"]
    assert [answer["error"]["code"] for answer in answers[2:]] == ["IsaMissingPair", "IsaUnknownArchitecture"]


def test_stream_has_the_source_too() -> None:
    assert lines(run("check", "-", "--source", "node-label", stdin="rv64g\trv64imafd\n"))[0]["satisfied"]
    assert lines(run("parse", "-", "--source", "cpuinfo", stdin="rv64imafdcsu\n"))[0]["canonical"] == "rv64imafdc"


def test_bytes_that_are_no_text_are_answered_in_place() -> None:
    assert lines(run("parse", "-", stdin=b"\xff\xfe\nrv64i\n"))[1]["canonical"] == "rv64i"


def test_arguments_that_are_no_text_are_answered_too() -> None:
    # How Python passes an argument that is no UTF-8.
    result = run("parse", "rv64\udcff", "-o", "json")
    assert result.exit_code == 2
    assert document(result)["input"] == "rv64?"


def test_detect_names_family_level_and_features(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\n")
    assert document(run("detect", "--cpuinfo", str(cpuinfo), "-o", "json")) == {
        "family": "arm",
        "xlen": 64,
        "canonical": "armv8.0-a+cpuid+crc32+evtstrm",
        "level": "armv8.0-a",
        "features": ["asimd", "cpuid", "crc32", "evtstrm", "fp"],
        "cpus": 1,
        "notes": [],
    }


def test_detect_names_the_extensions_of_riscv() -> None:
    text = "processor : 0\nisa : rv64imafdcv_zba\ncpu-vector : 0.7.1\n"
    detected = document(run("detect", "--cpuinfo", "-", "-o", "json", stdin=text))
    assert detected["family"] == "riscv"
    assert "zba" in detected["extensions"]
    assert "v" not in detected["extensions"]
    assert detected["notes"]
    assert "rv64imafdc_zba" in run("detect", "--cpuinfo", "-", stdin=text).stdout


@pytest.mark.parametrize("name", ["missing-file", "."])
def test_unreadable_cpuinfo_exits_2(name: str) -> None:
    result = run("detect", "--cpuinfo", name, "-o", "json")
    assert result.exit_code == 2
    assert document(result)["error"]["code"] == "FileUnreadable"


def test_text_without_a_cpu_exits_2() -> None:
    result = run("detect", "--cpuinfo", "-", stdin="hello")
    assert result.exit_code == 2
    assert "IsaNotDetected" in result.stderr


def test_check_explains_differences_to_the_scheduler() -> None:
    result = run("check", "rv64gc", "rv64imafdc", "-o", "json")
    found = document(result)
    assert (result.exit_code, found["satisfied"], found["missing"]) == (1, False, ["zifencei"])
    assert "zifencei were part of base I before 2019" in found["note"]
    assert "--source node-label" in run("check", "rv64gc", "rv64imafdc").stdout
    agreeing = run("check", "rv64gc", "rv64imafdc", "--source", "node-label", "-o", "json")
    assert document(agreeing)["satisfied"]
    assert "note" not in document(agreeing)
    assert "note" not in document(run("check", "rv64gcv", "rv64imafdc", "-o", "json"))
    (line,) = lines(run("check", "-", stdin="rv64gc\trv64imafdc\n"))
    assert "note" in line
