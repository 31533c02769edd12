"""A lock installs the same files from any index: every pin has a hash, and no address is inside."""

import re

import pytest

from requirements import installer


@pytest.mark.parametrize("name", installer.LOCKS)
def test_every_pin_has_a_hash(name: str) -> None:
    pins = re.split(r"\n(?=[a-z0-9])", (installer.REQUIREMENTS / f"{name}.lock").read_text())

    assert all("==" in pin and "--hash=sha256:" in pin for pin in pins if not pin.startswith("#"))


@pytest.mark.parametrize("name", installer.LOCKS)
def test_no_address_or_folder_is_recorded(name: str) -> None:
    text = (installer.REQUIREMENTS / f"{name}.lock").read_text()

    assert not re.search(r"://|--index|--find-links|file:|\s/\w", text)


def test_development_and_production_run_the_same_versions() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^\S+==[^\s;]+", (installer.REQUIREMENTS / f"{name}.lock").read_text(), re.MULTILINE))

    assert pins("runtime") - pins("dev") == set()
