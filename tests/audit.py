"""`make audit`: check the locked packages for known vulnerabilities, and write a bill of materials.

Every pin of `requirements/runtime.lock` is looked up in the advisory service of the package index. A package that the
service does not know is unchecked. If most packages are unchecked, for example offline, the result is "not checked" and
not a failure. The bill of materials (CycloneDX 1.6) is always written to `.tools/sbom.cdx.json`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "runtime.lock"
BILL = ROOT / ".tools" / "sbom.cdx.json"
PATIENCE_SECONDS = 120
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def pins(lock: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes of every package of a lock file."""
    starts = list(_PIN.finditer(lock))
    ends = [start.start() for start in starts[1:]] + [len(lock)]
    return {s[1].lower(): (s[2], _HASH.findall(lock[s.start() : end])) for s, end in zip(starts, ends, strict=True)}


def bill_of_materials(lock: str) -> dict[str, Any]:
    """Return the bill of materials of a lock file."""
    components = [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            "properties": [{"name": "hetsched:sha256", "value": one} for one in hashes],
        }
        for name, (version, hashes) in sorted(pins(lock).items())
    ]
    tool = {"type": "application", "name": "hetsched"}
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": tool},
            "components": components}  # fmt: skip


def judge(answer: str) -> tuple[int, str]:
    """Return the exit code and a summary of pip-audit's JSON result."""
    try:
        packages = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return 0, "NOT CHECKED: the advisory service does not answer"
    asked = [package for package in packages if "vulns" in package]
    skipped = len(packages) - len(asked)
    known = [(p["name"], p["version"], v["id"], v.get("fix_versions", [])) for p in asked for v in p["vulns"]]
    if known:
        lines = [
            f"{name} {version}: {what}, fixed in {', '.join(fixed) or 'none'}" for name, version, what, fixed in known
        ]
        return 1, "\n".join([f"{len(known)} known vulnerabilities:", *lines])
    if not asked:
        return 0, f"NOT CHECKED: the advisory service knows none of {skipped} packages"
    return 0, f"nothing is known against {len(asked)} packages; {skipped} were not checked"


def main() -> int:
    """Write the bill of materials, query the service and print the result."""
    BILL.parent.mkdir(exist_ok=True)
    BILL.write_text(json.dumps(bill_of_materials(LOCK.read_text()), indent=1) + "\n")
    program = [Path(sys.executable).with_name("pip-audit"), "--requirement", LOCK, "--require-hashes", "--disable-pip"]
    options = ["--format", "json", "--timeout", "10", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*program, *options], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        code, text = judge(done.stdout)
    except subprocess.TimeoutExpired:
        code, text = judge("")
    print(f"audit: {text}")
    print(f"audit: bill of materials of {len(pins(LOCK.read_text()))} packages in {BILL.relative_to(ROOT)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
