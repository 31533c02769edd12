"""`hetsched whatif` on the example of a gang in one rack."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.calling import document, run

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"


def whatif(manifest: Path) -> tuple[str, ...]:
    return ("whatif", "-f", str(manifest), "--cluster", str(EXAMPLES / "nodes.yaml"), "-o", "json")


def test_gang_example_uses_the_rack_with_the_least_free_capacity() -> None:
    found = document(run(*whatif(EXAMPLES / "gang-rack.yaml")))
    assert {placement["node"] for placement in found["placements"]} == {"plain-0", "riscv-0"}


def test_no_rack_is_sufficient(tmp_path: Path) -> None:
    # Members of 20 CPUs: gpu-0 in rack-2 holds one, no other node of either rack.
    manifest = tmp_path / "gang.yaml"
    manifest.write_text((EXAMPLES / "gang-rack.yaml").read_text().replace('cpu: "2"', 'cpu: "20"'))
    answer = run(*whatif(manifest))
    assert answer.exit_code == 11
    reasons = {reason["code"] for each in document(answer)["unplaced"] for reason in each["reasons"]}
    assert "GangTooBig" in reasons  # no two nodes of the whole cluster have capacity
    manifest.write_text((EXAMPLES / "gang-rack.yaml").read_text().replace("example.com/rack", "example.com/row"))
    answer = run(*whatif(manifest))
    assert answer.exit_code == 11
    assert "no node has the label example.com/row" in document(answer)["summary"]
