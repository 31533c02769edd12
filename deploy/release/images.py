"""Images of the Dockerfile for several platforms, as OCI archives, by buildah or docker buildx."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .platforms import PLATFORMS

# Packages of Debian that compile the packages without a wheel.
COMPILERS = {"linux/riscv64": "build-essential cargo libffi-dev libssl-dev libyaml-dev pkg-config rustc"}


def reason_against(wanted: list[str]) -> str:
    """Return why these images cannot be built on this machine, or an empty text."""
    if unknown := sorted(set(wanted) - PLATFORMS.keys()):
        return f"unknown platforms {', '.join(unknown)} (--images): use {', '.join(PLATFORMS)}"
    if wanted and not (shutil.which("buildah") or shutil.which("docker")):
        return "no image builder was found (--images): install buildah, or docker with buildx"
    return ""


def build_images(source: Path, out: Path, version: str, seconds: int, wanted: list[str], base: str | None) -> None:
    """Build an image of the tree `source` for each wanted platform; `base` replaces the Dockerfile's Python image.

    Raises: CalledProcessError if a build fails.
    """
    for name in wanted:
        archive = out / f"hetsched-image-{version}-{name.rpartition('/')[2]}.tar"
        settings = {"SOURCE_DATE_EPOCH": str(seconds), "BUILD_PACKAGES": COMPILERS.get(name, "")}
        if base:
            settings["PYTHON_IMAGE"] = base
        options = [word for key, value in settings.items() for word in ("--build-arg", f"{key}={value}")]
        for command in _commands(name, [*options, str(source)], archive, f"localhost/hetsched:{version}"):
            subprocess.run(command, check=True)


def _commands(name: str, options: list[str], archive: Path, tag: str) -> list[list[str]]:
    """Return the commands that build one image and write its archive."""
    if shutil.which("buildah"):
        build = ["buildah", "build", "--platform", name, "--tag", tag, *options]
        return [build, ["buildah", "push", tag, f"oci-archive:{archive}:{tag}"]]
    output = f"type=oci,dest={archive},rewrite-timestamp=true"
    return [["docker", "buildx", "build", "--platform", name, "--output", output, *options]]
