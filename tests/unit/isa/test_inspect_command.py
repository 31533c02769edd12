"""`hetsched isa inspect` on programs and on OCI image layouts, directory and tar."""

import hashlib
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hetsched.cli.isa.command import app

Descriptor = dict[str, Any]


def inspect(file: Path) -> Result:
    return CliRunner().invoke(app, ["inspect", str(file), "-o", "json"])


class Layout:
    """An image layout on disk that a test extends."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs" / "sha256").mkdir(parents=True)
        (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, document: Any) -> Descriptor:
        content = json.dumps(document).encode()
        digest = hashlib.sha256(content).hexdigest()
        (self.root / "blobs" / "sha256" / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def image(self, architecture: str, variant: str = "", *, system: str = "linux", stated: bool = True) -> Descriptor:
        platform = {"os": system, "architecture": architecture} | ({"variant": variant} if variant else {})
        manifest = self.blob({"config": self.blob(platform), "layers": []})
        return manifest | ({"platform": platform} if stated else {})

    def index(self, *manifests: Descriptor) -> Path:
        (self.root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
        return self.root


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "image")


def test_program_requirement_is_read(tmp_path: Path) -> None:
    program = tmp_path / "program"
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    program.write_bytes(header + struct.pack("<HHIQQQIHHHHHH", 2, 243, 1, 0, 0, 0, 0x5, 64, 56, 0, 64, 0, 0))
    result = inspect(program)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "file": str(program),
        "format": "elf",
        "machine": "riscv",
        "bits": 64,
        "requirement": "rv64idc",
        "evidence": "e_flags",
    }


def test_index_has_one_requirement_per_architecture(layout: Layout) -> None:
    unknown = layout.image("unknown", system="unknown")
    path = layout.index(
        layout.image("amd64"), layout.image("arm64", "v8"), layout.image("riscv64", "rva22u64"), unknown
    )
    answer = json.loads(inspect(path).stdout)
    assert answer["requirements"] == {"amd64": "x86-64-v1", "arm64": "armv8.0-a", "riscv64": "rva22u64"}
    assert answer["platforms"] == ["linux/amd64", "linux/arm64/v8", "linux/riscv64/rva22u64", "unknown/unknown"]
    assert answer["requirement"] is None
    assert len(answer["warnings"]) == 1


def test_nested_index_and_manifest_without_platform_are_read(layout: Layout) -> None:
    nested = layout.blob(
        {"schemaVersion": 2, "manifests": [layout.image("amd64", "v3"), layout.image("amd64", stated=False)]}
    )
    answer = json.loads(inspect(layout.index(nested)).stdout)
    assert (answer["requirement"], answer["warnings"]) == ("x86-64-v1", [])


@pytest.mark.parametrize(("name", "mode"), [("image.tar", "w"), ("image.tar.gz", "w:gz")])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_tar_archive_is_read_in_place(layout: Layout, tmp_path: Path, name: str, mode: Any, prefix: str) -> None:
    path = layout.index(layout.image("riscv64", stated=False))
    with tarfile.open(tmp_path / name, mode) as archive:
        for file in sorted(path.rglob("*")):
            archive.add(file, prefix + str(file.relative_to(path)), recursive=False)
    assert json.loads(inspect(tmp_path / name).stdout)["requirement"] == "rv64imafdc_zicsr_zifencei"


def test_blob_with_another_digest_is_rejected(layout: Layout) -> None:
    image = layout.image("amd64", stated=False)
    path = layout.index(image)
    (path / "blobs" / "sha256" / image["digest"].removeprefix("sha256:")).write_text("{}")
    assert refused(path) == "OciMalformed"


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"digest": "sha256:../../secret"},
        {"digest": 5},
        {"digest": f"sha256:{'0' * 64}"},
        "text",
        {"platform": {"os": 1}},
    ],
)
def test_malformed_index_is_rejected(layout: Layout, manifest: Any) -> None:
    assert refused(layout.index(manifest)) == "OciMalformed"


def test_recursive_index_terminates(layout: Layout) -> None:
    deepest = layout.blob({"manifests": [layout.image("amd64")]})
    for _ in range(10):
        deepest = layout.blob({"manifests": [deepest]})
    assert refused(layout.index(deepest)) == "OciMalformed"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"manifests": 5}', "[" * 100_000])
def test_invalid_index_is_rejected(layout: Layout, content: str) -> None:
    (layout.root / "index.json").write_text(content)
    assert refused(layout.root) == "OciMalformed"


def test_directory_without_a_layout_is_rejected(tmp_path: Path) -> None:
    assert refused(tmp_path) == "OciMalformed"


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x1f\x8bnothing", b"\0" * 257 + b"ustar" + b"\1" * 300])
def test_unsupported_files_are_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert refused(tmp_path / "file") in ("ElfMalformed", "OciMalformed")


def test_rejected_file_is_named(tmp_path: Path) -> None:
    """The error names the file once, whether or not the parser knew its name."""
    for name, content in (("text", b"#!/bin/sh\n"), ("missing", None)):
        file = tmp_path / name
        if content is not None:
            file.write_bytes(content)
        output = CliRunner().invoke(app, ["inspect", str(file)]).output
        assert output.count(str(file)) == 1, output


def test_missing_file_is_unreadable(tmp_path: Path) -> None:
    assert refused(tmp_path / "missing") == "FileUnreadable"


def refused(file: Path) -> str:
    result = inspect(file)
    assert result.exit_code == 2
    assert result.stderr
    return str(json.loads(result.stdout)["error"]["code"])
