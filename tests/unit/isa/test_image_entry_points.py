"""The entry point of an image: through links, scripts, layers, layouts and older archives."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetsched.adapters.oci.inspection import Inspection, inspect_bytes, inspect_path
from hetsched.contracts.errors import InputError

Entry = bytes | tuple[str, str]  # content, or ("link" | "hard", target)


def elf(machine: int, flags: int = 0) -> bytes:
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    return header + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, 0, flags, 64, 56, 0, 64, 0, 0)


RISCV, ARM = elf(243, 0x5), elf(183)  # rv64, compressed, doubles


def layer(files: Mapping[str, Entry]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.type = tarfile.SYMTYPE if content[0] == "link" else tarfile.LNKTYPE
                member.linkname = content[1]
                archive.addfile(member)
    return made.getvalue()


def layout(root: Path, settings: Any, *layers: bytes, architecture: str = "riscv64") -> Path:
    def blob(content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (root / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (root / "blobs/sha256" / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    platform = {"os": "linux", "architecture": architecture}
    config = blob(json.dumps(platform | {"config": settings}).encode())
    manifest = blob(json.dumps({"config": config, "layers": [blob(one) for one in layers]}).encode())
    (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (root / "index.json").write_text(json.dumps({"manifests": [manifest | {"platform": platform}]}))
    return root


def entry(found: Inspection) -> list[tuple[str, str | None]]:
    return [(program.file, program.requirement) for program in found.programs]


def test_entry_point_raises_the_requirement(tmp_path: Path) -> None:
    # rv64gc by the platform; the program has no attribute, so its header's flags are its requirement: within rv64gc.
    found = inspect_path(layout(tmp_path, {"Entrypoint": ["/app"]}, layer({"app": RISCV})))
    assert entry(found) == [("/app", "rv64idc")]
    assert found.requirement == "rv64imafdc_zicsr_zifencei"
    assert (found.warnings, found.problems) == ((), ())


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        ({"Cmd": ["app"]}, {"usr/bin/app": RISCV}),
        ({"Cmd": ["app"], "Env": ["PATH=/opt/x:/srv"]}, {"srv/app": RISCV, "usr/bin/app": ARM}),
        ({"Entrypoint": ["./app"], "WorkingDir": "/srv"}, {"srv/app": RISCV}),
        ({"Entrypoint": ["/bin/app"]}, {"bin": ("link", "usr/bin"), "usr/bin/app": RISCV}),
        ({"Entrypoint": ["/bin/app"]}, {"bin": ("link", "/usr/bin"), "usr/bin/app": ("link", "../b"), "usr/b": RISCV}),
        ({"Entrypoint": ["/app"]}, {"real": RISCV, "app": ("hard", "real")}),
        ({"Entrypoint": ["/run"]}, {"run": b"#!/bin/sh -e\n", "bin/sh": RISCV}),
        ({"Entrypoint": ["/run"]}, {"run": b"#!/usr/bin/env python3\n", "usr/local/bin/python3": RISCV}),
    ],
)  # fmt: skip
def test_links_scripts_and_search_paths_are_followed(tmp_path: Path, settings: Any, files: dict[str, Entry]) -> None:
    found = inspect_path(layout(tmp_path, settings, gzip.compress(layer(files))))
    assert [requirement for _, requirement in entry(found)] == ["rv64idc"]


def test_later_layer_replaces_and_deletes_files(tmp_path: Path) -> None:
    first = layer({"app": ARM, "usr/bin/tool": ARM, "opt/x/y": ARM})
    replaced = inspect_path(layout(tmp_path / "a", {"Entrypoint": ["/app"]}, first, layer({"./app": RISCV})))
    assert entry(replaced) == [("/app", "rv64idc")]
    for at, gone in enumerate([{".wh.app": b""}, {".wh..wh..opq": b""}]):
        found = inspect_path(layout(tmp_path / f"b{at}", {"Entrypoint": ["/app"]}, first, layer(gone)))
        assert (entry(found), found.problems) == ([], ("linux/riscv64: /app is not in any layer of the image",))


@pytest.mark.parametrize(
    ("layers", "need"),
    [
        # A later layer replaces or deletes the target, or the link's own layer replaces it after the link.
        ([{"real": RISCV, "app": ("hard", "real")}, {"real": ARM}], "rv64idc"),
        ([{"real": RISCV, "app": ("hard", "real")}, {".wh.real": b""}], "rv64idc"),
        ([{"real": RISCV}, {"app": ("hard", "real"), "./real": ARM}], "rv64idc"),
        ([{"real": RISCV, "app": ("hard", "./real"), "./real": ARM}], "rv64idc"),
        ([{"a": ARM, "./a": RISCV, "app": ("hard", "a"), "/a": ARM}], "rv64idc"),
        # The target is the file that the layers below and the link's own layer have at the link.
        ([{"real": ARM}, {"real": RISCV, "app": ("hard", "real")}], "rv64idc"),
        ([{"real": ARM}, {"app": ("hard", "real")}, {"real": RISCV}], "arm64"),
        ([{"real": ARM}, {".wh.real": b"", "app": ("hard", "real")}], None),
        # A replaced link does not change its target, and a link of a link is a name of the same file.
        ([{"real": RISCV, "b": ("hard", "real"), "app": ("hard", "b")}, {"b": ARM, "real": ARM}], "rv64idc"),
        ([{"app": RISCV, "b": ("hard", "app")}, {"b": ARM}], "rv64idc"),
        # Opaque folders and whiteouts delete links of lower layers alone.
        ([{"real": RISCV}, {"app": ("hard", "real"), ".wh..wh..opq": b""}], "rv64idc"),
        ([{"real": RISCV, "app": ("hard", "real")}, {".wh.app": b""}], None),
        # Folders of the target are resolved through links; the target itself is not: the new name is a link too.
        ([{"usr/bin/x": RISCV, "bin": ("link", "usr/bin"), "app": ("hard", "bin/x")}], "rv64idc"),
        ([{"old": ARM, "x": ("link", "old"), "app": ("hard", "x")}, {"old": RISCV}], "rv64idc"),
        # No runtime unpacks these.
        ([{"app": ("hard", "real"), "real": RISCV}], None),
        ([{"app": ("hard", "app")}], None),
    ],
)
def test_hard_link_keeps_the_content_of_its_layer(
    tmp_path: Path, layers: list[dict[str, Entry]], need: str | None
) -> None:
    found = inspect_path(layout(tmp_path, {"Entrypoint": ["/app"]}, *map(layer, layers)))
    if need is None:
        assert (entry(found), found.problems) == ([], ("linux/riscv64: /app is not in any layer of the image",))
    elif need == "arm64":
        assert "/app is a program for arm64, but the image is for linux/riscv64" in found.warnings
    else:
        assert [requirement for _, requirement in entry(found)] == [need]


def test_program_for_another_architecture_is_a_warning(tmp_path: Path) -> None:
    found = inspect_path(layout(tmp_path, {"Entrypoint": ["/app"]}, layer({"app": ARM})))
    assert "/app is a program for arm64, but the image is for linux/riscv64" in found.warnings
    assert found.requirements == {"riscv64": "rv64imafdc_zicsr_zifencei"}


@pytest.mark.parametrize(
    ("settings", "content", "problem"),
    [
        ({}, layer({}), "neither an Entrypoint nor a Cmd"),
        ({"Entrypoint": ["/app"]}, b"\x28\xb5\x2f\xfd" + bytes(400), "its compression is not supported"),
        ({"Entrypoint": ["/app"]}, gzip.compress(layer({"app": RISCV}), mtime=0)[:60], "cannot be read"),
        ({"Entrypoint": ["/a"]}, layer({"a": ("link", "b"), "b": ("link", "a")}), "not in any layer of the image"),
        ({"Entrypoint": ["/a"]}, layer({"a": ("link", "../../../../etc/passwd")}), "not in any layer of the image"),
        ({"Entrypoint": ["/a"]}, layer({"a": b"#!/a\n"}), "4 nested scripts; /a was not examined"),
        ({"Entrypoint": ["/a"]}, layer({"a": b"text"}), "not an ELF file"),
        ({"Entrypoint": "a", "Cmd": [5], "Env": 7}, layer({}), "neither an Entrypoint nor a Cmd"),
    ],
)
def test_unreadable_entry_is_reported(tmp_path: Path, settings: Any, content: bytes, problem: str) -> None:
    found = inspect_path(layout(tmp_path, settings, content))
    assert (found.programs, len(found.problems)) == ((), 1)
    assert problem in found.problems[0]
    assert found.requirement == "rv64imafdc_zicsr_zifencei"


def test_archive_in_memory_equals_the_folder(tmp_path: Path) -> None:
    root = layout(tmp_path / "image", {"Entrypoint": ["/app"]}, layer({"app": RISCV}))
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        archive.add(root, ".")
    assert inspect_bytes(made.getvalue()) == inspect_path(root)


@pytest.mark.parametrize("packed", [True, False])
def test_docker_save_archive_without_a_layout_is_read(tmp_path: Path, packed: bool) -> None:
    configuration = {"os": "linux", "architecture": "arm64", "variant": "v8", "config": {"Cmd": ["/app"]}}
    files = {
        "manifest.json": json.dumps([{"Config": "c.json", "RepoTags": ["x:1"], "Layers": ["one/layer.tar"]}]).encode(),
        "c.json": json.dumps(configuration).encode(),
        "one/layer.tar": layer({"app": ARM}),
    }
    if packed:
        found = inspect_bytes(layer(files))
    else:
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
        found = inspect_path(tmp_path)
    assert (found.format, found.platforms, found.requirements) == (
        "docker-archive", ("linux/arm64/v8",), {"arm64": "armv8.0-a"},
    )  # fmt: skip
    assert entry(found) == [("/app", "armv8.0-a")]


@pytest.mark.parametrize("layers", [["../../etc/passwd"], ["/etc/passwd"], [5], "x", ["missing"]])
def test_layer_outside_the_archive_is_not_read(tmp_path: Path, layers: Any) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps([{"Config": "c.json", "Layers": layers}]))
    (tmp_path / "c.json").write_text(json.dumps({"os": "linux", "architecture": "arm64", "config": {"Cmd": ["/app"]}}))
    try:
        found = inspect_path(tmp_path)
    except ValueError:
        return
    assert found.programs == ()
    assert found.problems


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_oversized_header_is_rejected(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, 1 << 32
    bomb = gzip.compress(member.tobuf() + bytes(1 << 16))
    found = inspect_path(layout(tmp_path, {"Entrypoint": ["/app"]}, bomb))
    assert "longer than" in found.problems[0]
    with pytest.raises(InputError, match="longer than"):
        inspect_bytes(bomb)


def test_names_outside_utf8_are_reported(tmp_path: Path) -> None:
    odd = b"o\xffdd".decode("utf-8", "surrogateescape")
    for at, content in enumerate([RISCV, b"text"]):
        found = inspect_path(layout(tmp_path / str(at), {"Cmd": ["/app"]}, layer({"app": ("link", odd), odd: content})))
        assert "o?dd" in msgspec.json.encode(found).decode()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / odd).write_bytes(RISCV)
    (folder / f"{odd}2").write_bytes(b"\x7fELF")
    assert msgspec.json.encode(inspect_path(folder)).count(b"o?dd") == 2


SETTINGS = st.dictionaries(
    st.sampled_from(["Entrypoint", "Cmd", "Env", "WorkingDir"]),
    st.recursive(st.none() | st.integers() | st.text(max_size=8) | st.just("/app"), st.lists, max_leaves=4),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(SETTINGS, st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=12), st.integers(0, 4000))
def test_any_image_is_reported_or_rejected(stated: Any, damage: list[tuple[int, int]], length: int) -> None:
    tar = bytearray(layer({"app": RISCV, "link": ("link", "app")}))
    for at, value in damage:
        tar[at] = value
    with tempfile.TemporaryDirectory() as folder:
        root = layout(Path(folder), stated, bytes(tar[: length or None]))
        found = inspect_path(root)
        assert found.requirements == {"riscv64": "rv64imafdc_zicsr_zifencei"}
        msgspec.json.encode(found)


def test_folder_with_a_foreign_manifest_is_read_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a web application"}')
    (tmp_path / "program").write_bytes(RISCV)
    assert inspect_path(tmp_path).format == "directory"
