"""Documents and file trees for tests of GPUs."""

from __future__ import annotations

import gzip
from pathlib import Path

DOCUMENTS = Path(__file__).parent / "nvidia_smi"


def document(name: str) -> bytes:
    return gzip.decompress((DOCUMENTS / f"{name}.xml.gz").read_bytes())


def put(root: Path, files: dict[str, str]) -> None:
    """Write files below a root, by path."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def pci_device(
    root: Path, address: str, kind: str, vendor: str, *, numa_node: int | None = 0, driver: str = "", **files: str
) -> None:
    """Write the files of one PCI device as in sysfs."""
    here = f"sys/bus/pci/devices/{address}"
    put(root, {f"{here}/class": f"{kind}\n", f"{here}/vendor": f"{vendor}\n"})
    put(root, {f"{here}/{name}": f"{text}\n" for name, text in files.items()})
    if numa_node is not None:
        put(root, {f"{here}/numa_node": f"{numa_node}\n"})
    if driver:
        (root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
        (root / here / "driver").symlink_to(f"../../drivers/{driver}")
