"""The generated modules match the output of protoc for the .proto files in their folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "hetsched/agent/rpc"


def test_generated_modules_equal_protoc_output(tmp_path: Path) -> None:
    protos = sorted(str(path.relative_to(ROOT)) for path in FOLDER.glob("*.proto"))
    made = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", f"--python_out={tmp_path}", *protos]
    subprocess.run(made, cwd=ROOT, check=True)
    there = {path.name: path.read_bytes() for path in FOLDER.glob("*_pb2.py")}
    assert there == {path.name: path.read_bytes() for path in (tmp_path / "hetsched/agent/rpc").iterdir()}
    assert len(there) == len(protos) > 0
