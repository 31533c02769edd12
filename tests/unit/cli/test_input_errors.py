"""Invalid options and files: exit code 2, one message with code, position and reason on standard error only."""

from pathlib import Path

import pytest

from tests.builders import a_node, a_pod
from tests.unit.cli.calling import cluster_file, run, workload_file

CARD_NODES = "sn,cpu_milli,memory_mib,gpu,model\nn,8000,16384,2,T4\n"
CARD_PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,1024,1,500\n"
POLICY = "apiVersion: hetsched.io/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: p}\nspec: {plugins: [%s]}\n"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    texts = {
        "broken.yaml": "a: [1",
        "empty.yaml": "\n---\n",
        "alias.yaml": "a: &x 1\nb: *x\n",
        "row.csv": "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,minus,1024,1,500\n",
        "nodes.csv": CARD_NODES,
        "pods.csv": CARD_PODS,
        "no-plugin.yaml": POLICY % "{name: no-such-plugin}",
        "no-weight.yaml": POLICY % "{name: least-allocated, weight: -1}",
        "no-param.yaml": POLICY % "{name: least-allocated, params: {cpus: 1}}",
        "two.yaml": (POLICY % "{name: taints}") + "---\n" + (POLICY % "{name: taints}").replace("name: p}", "name: q}"),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    (tmp_path / "empty").mkdir()
    return {
        **{name: tmp_path / name for name in (*texts, "latin.yaml")},
        "cluster": cluster_file(tmp_path),
        "pods": workload_file(tmp_path, a_pod()),
        "running": workload_file(tmp_path, a_pod("old"), name="old.json"),
        "missing": tmp_path / "missing.yaml",
        "folder": tmp_path / "empty",
    }


WHATIF = "whatif -f @pods --cluster @cluster"


@pytest.mark.parametrize(
    ("line", "code", "place"),
    [
        ("whatif -f @pods", "OptionMissing", "hetsched whatif"),
        ("whatif -f @pods --cluster", "UsageWrong", "hetsched"),
        (f"{WHATIF} --colour", "OptionUnknown", "hetsched whatif"),
        (f"{WHATIF} -o xml", "OptionInvalid", "hetsched whatif"),
        ("nonsense", "UsageWrong", "hetsched"),
        (f"{WHATIF} --drain n9", "NodeUnknown", "drain"),
        (f"{WHATIF} --drain plain --drain plain", "NodeRepeated", "drain"),
        (f"{WHATIF} --copy-node n9=1", "NodeUnknown", "copyNodes"),
        (f"{WHATIF} --copy-node plain=0", "NodeCopiesInvalid", "copyNodes"),
        (f"{WHATIF} --copy-node plain", "NodeCopiesInvalid", "--copy-node"),
        (f"{WHATIF} --copy-node plain=9999", "NodeCopiesInvalid", "copyNodes"),
        ("whatif -f @latin.yaml --cluster @cluster", "ManifestNotUtf8", "latin.yaml"),
        ("check -f @pods --cluster @cluster --artefact @missing", "FileUnreadable", "--artefact"),
        ("check -f @pods --cluster @cluster --artefact @pods", "ElfMalformed", "--artefact"),
        ("isa parse rv64gc_zfoo", "IsaUnknownExtension", "STRING"),
        ("isa check rv64i rv64gx", "IsaUnknownExtension", "OFFERED"),
        ("isa check rv64 rv64gc", "IsaMissingBase", "REQUIRED"),
        ("isa check rv64gc", "OptionInvalid", "OFFERED"),
        ("isa inspect @missing", "FileUnreadable", "missing.yaml"),
        ("isa inspect @pods", "ElfMalformed", "pods.json"),
        ("isa detect --cpuinfo @missing", "FileUnreadable", "--cpuinfo"),
        ("isa detect --cpuinfo @pods", "IsaNotDetected", "--cpuinfo"),
        ("simulate --workload @pods --cluster @cluster --report @pods", "ReportFolderUnusable", "--report"),
        ("advise --cluster @cluster --goal room", "WorkloadEmpty", "-f"),
        ("whatif -f @missing --cluster @cluster", "FileUnreadable", "missing.yaml"),
        ("whatif -f @folder --cluster @cluster", "WorkloadEmpty", "-f"),
        ("whatif -f @pods --cluster @missing", "FileUnreadable", "--cluster"),
        ("whatif -f - --cluster -", "InputRepeated", ""),
        ("whatif -f @pods -f @pods --cluster @cluster", "InputRepeated", "-f"),
        ("whatif -f @broken.yaml --cluster @cluster", "ManifestMalformed", "broken.yaml"),
        ("whatif -f @empty.yaml --cluster @cluster", "ManifestEmpty", "empty.yaml"),
        ("whatif -f @alias.yaml --cluster @cluster", "YamlAliasRefused", "alias.yaml"),
        ("whatif -f @cluster --cluster @cluster", "WorkloadEmpty", "-f"),
        ("whatif -f @pods --cluster @pods", "ClusterWithoutNodes", "--cluster"),
        ("policy golden check -f @pods --cluster @pods", "ClusterWithoutNodes", "pods.json"),
        ("policy golden check -f @pods", "ClusterWithoutNodes", "--cluster: no file with nodes is given"),
        ("policy golden check", "OptionMissing", "--policy"),
        ("policy golden check --policy a --policy b", "OptionMissing", "--policy"),
        ("whatif -f @running --cluster @cluster", "PodExists", "-f"),
        ("whatif -f @nodes.csv --cluster @cluster", "WrongFile", "nodes.csv"),
        ("simulate --workload @row.csv --cluster @nodes.csv", "TraceRowInvalid", "row.csv:2 cpu_milli"),
        (f"{WHATIF} --policy nowhere", "PolicyUnknown", "--policy nowhere"),
        (f"{WHATIF} --policy @missing", "FileUnreadable", "--policy"),
        (f"{WHATIF} --policy @two.yaml", "PolicyAmbiguous", "--policy"),
        (f"{WHATIF} --policy @pods", "PolicyAmbiguous", "--policy"),
        (f"{WHATIF} --policy @no-plugin.yaml", "PolicyPluginUnknown", "policy p"),
        (f"{WHATIF} --policy @no-weight.yaml", "PolicyMalformed", "spec"),
        (f"{WHATIF} --policy @no-param.yaml", "PolicyParamInvalid", "policy p"),
        ("simulate --workload @pods --cluster @cluster --policy spread --policy spread", "PolicyRepeated", "--policy"),
        ("simulate --workload @pods --cluster @cluster --arrival 1.3", "ArrivalWithoutGpus", "--arrival"),
        ("simulate --workload @pods --cluster @nodes.csv --arrival 1.3", "ArrivalWithoutGpus", "--arrival"),
        ("simulate --workload @pods.csv --cluster @nodes.csv --arrival 0", "ArrivalRatioInvalid", "--arrival"),
        ("simulate --workload @pods.csv --cluster @nodes.csv --arrival nan", "ArrivalRatioInvalid", "--arrival"),
        ("simulate --workload @pods.csv --cluster @nodes.csv --seed -1", "OptionInvalid", "simulate"),
        ("bench speed", "OptionInvalid", "hetsched bench"),
        ("get nodes --server ftp://host", "ServerUrlInvalid", "--server"),
        ("submit -f @missing --server http://127.0.0.1:9", "FileUnreadable", "missing.yaml"),
        ("wait w-1 --timeout -1 --server http://127.0.0.1:9", "OptionInvalid", "hetsched wait"),
    ],
)
def test_invalid_input_exits_2_with_one_message(files: dict[str, Path], line: str, code: str, place: str) -> None:
    words = [str(files[word[1:]]) if word.startswith("@") else word for word in line.split()]
    result = run(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    first, *rest = result.stderr.splitlines()
    assert first.startswith(f"error [{code}] ")
    assert place in first
    # The remedy follows in the same line.
    assert len(rest) == 1
    assert all(hint.startswith("  ") for hint in rest)


def test_unknown_policy_error_lists_the_known_ones(files: dict[str, Path]) -> None:
    result = run("whatif", "-f", files["pods"], "--cluster", files["cluster"], "--policy", "nowhere")
    assert "best-fit" in result.stderr
    assert "hetsched" in result.stderr


def test_pods_with_different_policies_require_the_option(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("a").policy("spread"), a_pod("b").policy("random"))
    result = run("whatif", "-f", pods, "--cluster", cluster_file(tmp_path, a_node()))
    assert result.exit_code == 2
    assert "PolicyAmbiguous" in result.stderr
