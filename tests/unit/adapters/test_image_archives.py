"""Archives of unknown origin: the cost of an inspection is limited; rejections have code, reason and remedy."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.oci import archive_reader
from hetsched.adapters.oci.archive_reader import MAX_MEMBERS, InspectionBudget, Unpacked
from hetsched.adapters.oci.inspection import inspect_bytes, inspect_path
from hetsched.adapters.oci.layers import LayerFiles
from hetsched.contracts.errors import InputError

MOST_MEMORY_MIB = 100
MEASURED = """
import re, sys
from pathlib import Path
from hetsched.adapters.oci import archive_reader
from hetsched.adapters.oci.inspection import inspect_path
from hetsched.contracts.errors import InputError
archive_reader.MAX_SECONDS = 200  # the memory is measured; a busy machine reaches the time limit first
def peak():  # ru_maxrss would include the memory of the parent process
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
try:
    said = inspect_path(Path(sys.argv[1])).problems
except InputError as error:
    said = error.code, error.message, error.hint
print(peak() - before, said, sep="\\n")
"""


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def empty_members(count: int) -> Iterator[bytes]:
    """Yield the headers of so many empty files, without building each from the start."""
    block = bytearray(header("0000000"))
    for number in range(count):
        block[0:7] = b"%07d" % number
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        yield bytes(block)
    yield bytes(1024)


def archive_of(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def image(*layers: bytes, copies: int = 1, config: dict[str, Any] | None = None) -> bytes:
    """Return the archive of a layout; its index lists the same image several times."""
    files: dict[str, bytes] = {}

    def blob(content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        files[f"blobs/sha256/{digest}"] = content
        return {"digest": f"sha256:{digest}", "size": len(content)}

    platform = {"os": "linux", "architecture": "amd64"}
    settings = blob(json.dumps({**platform, "config": config or {"Entrypoint": ["/app"]}}).encode())
    manifest = blob(json.dumps({"config": settings, "layers": [blob(layer) for layer in layers]}).encode())
    files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    files["index.json"] = json.dumps({"manifests": [{**manifest, "platform": platform}] * copies}).encode()
    return archive_of(files)


def measured(path: Path) -> tuple[float, str]:
    """Return the additional MiB and the result of an inspection in a separate process."""
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True, timeout=300
    )
    kibibytes, text = ended.stdout.split("\n", 1)
    return int(kibibytes) / 1024, text


def test_layer_with_too_many_members_is_rejected_within_100_mib(tmp_path: Path) -> None:
    packed = tmp_path / "many.tar.gz"
    packed.write_bytes(gzip.compress(b"".join(empty_members(MAX_MEMBERS + 1000)), 1))
    mebibytes, text = measured(packed)
    assert "OciTooLarge" in text
    assert f"more than {MAX_MEMBERS} members" in text
    assert "inspect one platform's image" in text
    assert mebibytes < MOST_MEMORY_MIB


def test_members_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_reader, "MAX_MEMBERS", 20)
    with pytest.raises(InputError, match="more than 20 members"):
        inspect_bytes(gzip.compress(b"".join(empty_members(21))))


def test_compressed_layer_within_the_limits_uses_at_most_100_mib(tmp_path: Path) -> None:
    packed = tmp_path / "image.tar.gz"
    packed.write_bytes(gzip.compress(image(gzip.compress(b"".join(empty_members(MAX_MEMBERS - 1000)), 1)), 1))
    mebibytes, text = measured(packed)
    assert "/app is not in any layer of the image" in text
    assert mebibytes < MOST_MEMORY_MIB


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, lambda data: data])
def test_packed_and_plain_archives_give_the_same_answer(pack: Callable[[bytes], bytes]) -> None:
    plain = image(archive_of({"app": b"#!/bin/x\n"}))
    assert inspect_bytes(pack(plain)) == inspect_bytes(plain)
    # Several streams, one after the other, are one archive.
    assert inspect_bytes(pack(plain[:1500]) + pack(plain[1500:])) == inspect_bytes(plain)


def test_gzip_member_starts_at_the_end_of_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, padding = image(archive_of({"app": b"#!/bin/x\n"})), bytes(300)
    first = gzip.compress(plain[:1500])
    for piece in (len(first) + 1, len(first) + len(padding) + 1, len(first) + len(padding)):
        monkeypatch.setattr(archive_reader, "_PIECE", piece)
        assert inspect_bytes(first + padding * (piece > len(first) + 1) + gzip.compress(plain[1500:])) == inspect_bytes(
            plain
        )


@pytest.mark.parametrize("again", ["app", "./app"])
def test_last_of_repeated_members_is_used(again: str) -> None:
    """A container gets the last one; an earlier one would hide the program that is started."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, kind, content in (
            ("app", tarfile.REGTYPE, b"#!/bin/first\n"),
            ("app", tarfile.DIRTYPE, b""),
            (again, tarfile.REGTYPE, b"#!/bin/last\n"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(content)
            archive.addfile(member, io.BytesIO(content))
    assert inspect_bytes(image(made.getvalue())).problems == (
        "linux/amd64: /bin/last is not in any layer of the image",
    )
    later = image(made.getvalue(), archive_of({"app": b"#!/bin/later\n"}))
    assert inspect_bytes(later).problems == ("linux/amd64: /bin/later is not in any layer of the image",)


def test_archive_above_2_gib_is_rejected_by_its_header() -> None:
    with pytest.raises(InputError, match="is larger than 2 GiB when unpacked") as caught:
        inspect_bytes(gzip.compress(header("x", 8 << 30) + bytes(1 << 20)))
    assert (caught.value.code, bool(caught.value.hint)) == ("OciTooLarge", True)


def test_bytes_between_members_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_reader, "MAX_UNPACKED_BYTES", 1 << 20)
    unpacked = Unpacked(io.BytesIO(gzip.compress(bytes(4 << 20))), InspectionBudget())
    with pytest.raises(InputError, match="GiB when unpacked"):
        sum(len(unpacked.read(1 << 16)) for _ in range(64))


def test_inspection_above_10_s_of_cpu_time_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_reader.time, "thread_time", iter(range(0, 10_000, 3)).__next__)
    with pytest.raises(InputError, match="more than 10 s of CPU time") as caught:
        inspect_bytes(gzip.compress(image(archive_of({"app": b""}))))
    assert (caught.value.code, bool(caught.value.hint)) == ("OciTooLarge", True)


def test_lzma_dictionary_above_40_mib_is_rejected() -> None:
    packer = lzma.LZMACompressor(
        filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 64 << 20, "preset": 0, "mf": lzma.MF_HC3, "depth": 1}]
    )
    with pytest.raises(InputError, match="cannot be read: Memory usage limit"):
        inspect_bytes(packer.compress(header("x") + bytes(4096)) + packer.flush())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            (header("././@LongLink", 5, tarfile.GNUTYPE_LONGNAME) + b"abcd".ljust(512, b"\0")) * 5000,
            "nested too deeply",
        ),
        (header("x", 512, tarfile.GNUTYPE_SPARSE) + bytes(512), "sparse file"),
        (header("x", 4096), "unexpected end"),
        (b"x" * 600, "not an ELF file|cannot be read"),
    ],
    ids=["chain-of-names", "sparse", "cut-short", "no-archive"],
)
def test_odd_headers_are_refused(content: bytes, why: str) -> None:
    for data in (gzip.compress(content), content):
        with pytest.raises(InputError, match=why):
            inspect_bytes(data)


def extended(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return header("x", len(records), kind) + records + bytes(-len(records) % 512) + header("a") + bytes(1024)


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (b"1" * (1 << 20), "a number in an extended header is too long"),  # 30 minutes in Python 3.11.7
        (b"2 " * 200_000 + b"=\n", "a record of an extended header is malformed"),  # 40 GB in Python 3.11.7
        (b"12 size=99\n", "a record of an extended header is malformed"),
        (b"0 a=b\n", "a record of an extended header is malformed"),
        (b"11 size=-9\n"[:10], "a record of an extended header is malformed"),
        (b"13 size=-512\n", "the size of a file is negative"),
        (b"22 GNU.sparse.major=0\n", "the archive contains a sparse file"),
    ],
)
def test_odd_attributes_are_refused(records: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        inspect_bytes(extended(records))
    assert caught.value.code == "OciMalformed"


def test_global_attributes_do_not_add_up() -> None:
    def attributes(number: int) -> bytes:
        record = b" k%06d=%s\n" % (number, b"v" * 900_000)
        record = b"%d" % (len(record) + 6) + record
        padded = record.ljust(-(-len(record) // 512) * 512, b"\0")
        return header("g", len(record), tarfile.XGLTYPE) + padded + header(f"m{number}")

    with pytest.raises(InputError, match="global attributes are longer"):
        inspect_bytes(gzip.compress(b"".join(map(attributes, range(4))), 1))


def test_indexes_that_are_nested_too_deeply_are_refused() -> None:
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    content = b'{"manifests": []}'
    for _ in range(60):
        digest = hashlib.sha256(content).hexdigest()
        files[f"blobs/sha256/{digest}"] = content
        content = json.dumps({"manifests": [{"digest": f"sha256:{digest}"}]}).encode()
    files["index.json"] = content
    with pytest.raises(InputError, match="nested too deeply"):
        inspect_bytes(archive_of(files))


def test_links_resolve_only_within_the_archive(tmp_path: Path) -> None:
    made, config = io.BytesIO(), b'{"os": "linux", "architecture": "amd64", "config": {"Cmd": ["/app"]}}'
    with tarfile.open(fileobj=made, mode="w") as archive:
        files = {"manifest.json": b'[{"Config": "c", "Layers": ["a/layer.tar", "b/layer.tar"]}]', "c": config}
        for name, content in {**files, "z/layer.tar": archive_of({"app": b"x"})}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in (("a/layer.tar", "../z/layer.tar"), ("b/layer.tar", "../../../../etc/passwd")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    for data in (made.getvalue(), gzip.compress(made.getvalue())):
        assert inspect_bytes(data).problems == ("linux/amd64: b/layer.tar is not in the archive",)


def test_tables_of_a_program_are_bounded(tmp_path: Path) -> None:
    sections = 70_000
    start = struct.pack(
        "<4sBB10xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 2, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, 0, 0
    ) + struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, sections, 0, 0, 0, 0)
    program = tmp_path / "program"
    program.write_bytes(start + bytes(64 * sections))
    with pytest.raises(InputError, match="more than 65536 entries"):
        inspect_path(program)
    # Overlapping sections: each is the whole file.
    size = 1 << 20
    entry = struct.pack("<IIQQQQIIQQ", 0, 7, 0, 0, 0, size, 0, 0, 0, 0)
    head = struct.pack("<4sBB10xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 2, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, 60, 0)
    program.write_bytes((head + entry * 60).ljust(size, b"\0"))
    with pytest.raises(InputError, match="bytes of notes or attributes"):
        inspect_path(program)


def chained_links() -> bytes:
    """Return a layer of 40 links, each to the next one and 2,040 folders below it: 163,000 characters when resolved."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for number in range(1, 41):
            link = tarfile.TarInfo(f"l{number}")
            link.type, link.linkname = tarfile.SYMTYPE, f"/l{number + 1}" + "/a" * 2040
            archive.addfile(link)
    return made.getvalue()


def test_chained_links_are_resolved_up_to_the_length_of_a_path() -> None:
    """Regression: one resolution took 1.5 s, and an image may look for its program in 256 folders."""
    config = {"Entrypoint": ["app"], "Env": ["PATH=" + ":".join(["/l1"] * 20)]}
    began = time.thread_time()
    found = inspect_bytes(gzip.compress(image(chained_links(), config=config)))
    assert found.problems == ("linux/amd64: app is not in any layer of the image",)
    assert time.thread_time() - began < 5


def test_link_resolution_counts_to_the_cpu_time_limit() -> None:
    budget = InspectionBudget()
    files = LayerFiles([lambda: io.BytesIO(chained_links())], budget)  # type: ignore[list-item, return-value]
    budget._until = 0
    with pytest.raises(InputError, match="more than 10 s of CPU time"):
        files.find("/l1/app")
