"""The package audit reports findings, and does not report unchecked packages as clean."""

from __future__ import annotations

import json

import pytest

from tests.audit import LOCK, bill_of_materials, judge, pins

# Known vulnerabilities of older versions; the threat model of docs/explanation/security.md explains this check.
FLOORS = {"django": (5, 2, 17), "djangorestframework": (3, 15, 2), "urllib3": (2, 5, 0), "cryptography": (44, 0, 1)}


def answer(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": packages})


CLEAN = {"name": "django", "version": "5.2.19", "vulns": []}
KNOWN = {"name": "urllib3", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
UNKNOWN = {"name": "django", "skip_reason": "Dependency not found"}


def test_known_vulnerability_fails_with_its_name_and_fixed_version() -> None:
    assert judge(answer(CLEAN, KNOWN)) == (1, "1 known vulnerabilities:\nurllib3 1.0: PYSEC-1, fixed in 1.1")


def test_checked_packages_are_distinguished_from_unchecked_ones() -> None:
    assert judge(answer(CLEAN, UNKNOWN)) == (0, "nothing is known against 1 packages; 1 were not checked")


@pytest.mark.parametrize("said", ["", "<html>no</html>", "{}", answer(UNKNOWN, UNKNOWN)])
def test_package_without_an_answer_is_unchecked(said: str) -> None:
    code, sentence = judge(said)

    assert code == 0
    assert sentence.startswith("NOT CHECKED")


def test_sbom_lists_every_pin_with_its_hashes() -> None:
    hashes = " \\\n".join(f"    --hash=sha256:{letter * 64}" for letter in "ab")
    lock = f"alpha==1.0 ; python_version > '3' \\\n{hashes}\nbeta==2\n"

    assert pins(lock) == {"alpha": ("1.0", ["a" * 64, "b" * 64]), "beta": ("2", [])}
    assert [component["purl"] for component in bill_of_materials(lock)["components"]] == [
        "pkg:pypi/alpha@1.0",
        "pkg:pypi/beta@2",
    ]


@pytest.mark.parametrize("package", FLOORS)
def test_every_version_is_at_least_the_fixed_one(package: str) -> None:
    version = pins(LOCK.read_text())[package][0]

    assert tuple(map(int, version.split(".")[:3])) >= FLOORS[package]
