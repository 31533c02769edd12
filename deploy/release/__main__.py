"""`python3 dev.py release`: build all artefacts of the version of HEAD into one folder.

The artefacts contain committed files only. Two builds of the same commit have the same digests: archives have sorted
members, and the time of the commit instead of the time of the build.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.audit import bill_of_materials

from . import manual, platforms
from .archives import pack, write_checksums
from .distribution import build_distributions
from .images import build_images, reason_against

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "runtime.lock"
_COMMENT = re.compile(r"^\s*#.*\n", re.MULTILINE)


class ReleaseError(Exception):
    """Failure that the user can fix; the message says how."""


def main() -> int:
    """Build the artefacts, and with `--check` a second time to compare the digests."""
    parser = argparse.ArgumentParser(prog="dev.py release", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the artefacts, which is emptied")
    parser.add_argument("--check", action="store_true", help="build twice and fail if two digests differ")
    parser.add_argument("--no-platforms", action="store_true", help="skip the table of platforms, which needs an index")
    parser.add_argument("--images", default="", help="also build images for these platforms: linux/amd64,linux/arm64")
    parser.add_argument("--base", help="base of the images, instead of the Python image of the Dockerfile")
    arguments = parser.parse_args()
    images = [name for name in arguments.images.split(",") if name]
    if reason := reason_against(images):
        parser.error(reason)
    try:
        build(arguments.out)
        if arguments.check:
            compare(arguments.out)
        if not arguments.no_platforms:
            (arguments.out / "platforms.json").write_text(json.dumps(platforms.report(LOCK), indent=1) + "\n")
        if images:
            _build_images(arguments.out, images, arguments.base)
    except ReleaseError as error:
        print(f"dev.py release: {error}", file=sys.stderr)
        return 1
    write_checksums(arguments.out)
    print((arguments.out / "SHA256SUMS").read_text(), end="")
    return 0


def build(out: Path) -> None:
    """Build all artefacts of HEAD into `out`.

    Raises: ReleaseError if HEAD cannot be read, or if the versions of its parts differ.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    seconds = _commit_time()
    with tempfile.TemporaryDirectory(prefix="hetsched-release-") as folder:
        source = Path(folder) / "source"
        _export(source)
        version = read_version(source)
        build_distributions(source, out, seconds)
        pack(source / "deploy" / "helm" / "hetsched", out / f"hetsched-chart-{version}.tgz", "hetsched", seconds)
        shell = Path(folder) / "shell"
        manual.write_pages(shell / "man" / "man1", version, seconds)
        manual.write_completions(shell / "completions")
        pack(shell, out / f"hetsched-shell-{version}.tar.gz", f"hetsched-shell-{version}", seconds)
        lock = (source / "requirements" / "runtime.lock").read_text()
    (out / f"hetsched-{version}-constraints.txt").write_text(_COMMENT.sub("", lock))
    (out / f"hetsched-{version}.cdx.json").write_text(json.dumps(bill_of_materials(lock), indent=1) + "\n")


def compare(out: Path) -> None:
    """Build again. Raises: ReleaseError if the content of an artefact differs from that in `out`."""
    with tempfile.TemporaryDirectory(prefix="hetsched-release-") as folder:
        again = Path(folder) / "again"
        build(again)
        names = {file.name for folder in (out, again) for file in folder.iterdir()}
        different = [name for name in sorted(names) if _read(out / name) != _read(again / name)]
    if different:
        raise ReleaseError(f"two builds differ in {', '.join(different)}")
    print(f"two builds of {len(names)} artefacts are equal", file=sys.stderr)


def _build_images(out: Path, images: list[str], base: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix="hetsched-release-") as folder:
        source = Path(folder) / "source"
        _export(source)
        try:
            build_images(source, out, read_version(source), _commit_time(), images, base)
        except subprocess.CalledProcessError as error:
            raise ReleaseError(str(error)) from error


def read_version(source: Path) -> str:
    """Return the version of the product. Raises: ReleaseError if its package, project and chart have different ones."""
    patterns = {
        "hetsched/__init__.py": r'^__version__ = "(.+)"$',
        "pyproject.toml": r'^version = "(.+)"$',
        "deploy/helm/hetsched/Chart.yaml": r'^appVersion: "?([^"\s]+)"?$',
    }
    versions = {}
    for name, pattern in patterns.items():
        found = re.search(pattern, (source / name).read_text(), re.MULTILINE)
        versions[name] = found[1] if found else "none"
    if len(set(versions.values())) > 1:
        raise ReleaseError(f"the versions differ ({versions}): set the same version in these files")
    return versions["pyproject.toml"]


def _export(source: Path) -> None:
    source.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise ReleaseError(f"cannot read HEAD ({archive.stderr.decode().strip()}): run it in a git checkout")
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)


def _commit_time() -> int:
    return int(_git("log", "-1", "--format=%ct"))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {words[0]} failed ({done.stderr.strip()}): run it in a git checkout")
    return done.stdout.strip()


def _read(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
