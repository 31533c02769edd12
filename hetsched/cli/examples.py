"""Examples at the end of a command's help.

Each line is a complete, valid command; a test parses them all.
"""

from __future__ import annotations

from rich.markup import escape

EXAMPLES: dict[str, tuple[str, ...]] = {
    "look": (
        "hetsched look",
        "hetsched look --context prod --html report.html --fail-on warning",
        "kubectl get nodes,pods -A -o yaml | hetsched look -f - -o json",
    ),
    "whatif": (
        "hetsched whatif -f pod.yaml --cluster cluster.yaml --explain",
        "hetsched whatif -f pod.yaml --cluster cluster.yaml --drain node-3 -o json",
        "kubectl get nodes,pods -A -o yaml | hetsched whatif -f pod.yaml --cluster -",
    ),
    "advise": (
        "hetsched advise --cluster cluster.yaml",
        "hetsched advise --of prod -f big-pod.yaml --goal room",
    ),
    "check": (
        "hetsched check -f deploy.yaml --cluster fleet.json --junit check.xml",
        "hetsched check -f job.yaml --server https://hetsched.example --artefact build/app",
    ),
    "simulate": (
        "hetsched simulate --cluster nodes.csv --workload pods.csv --policy hetsched --policy spread",
        "hetsched simulate --cluster nodes.yaml --workload jobs.yaml --report report/",
    ),
    "experiment": (
        "hetsched experiment isamatch",
        "hetsched experiment all --report report/",
    ),
    "bench": (
        "hetsched bench engine",
        "hetsched bench cluster --kubeconfig FILE --suite scheduler-perf --size 500Nodes --only SchedulingBasic",
    ),
    "isa": (
        "hetsched isa parse rv64gc_zba",
        "hetsched isa check x86-64-v3 x86-64-v4",
        "hetsched isa inspect build/app",
    ),
    "version": ("hetsched version", "hetsched version -o json"),
    "crds": ("hetsched crds | kubectl apply -f -",),
    "completion": (
        "source <(hetsched completion bash)",
        "hetsched completion zsh > ~/.zfunc/_hetsched",
        "hetsched completion fish > ~/.config/fish/completions/hetsched.fish",
    ),
    "submit": (
        "hetsched submit -f job.yaml",
        "hetsched submit -f job.yaml --for finished --watch --timeout 3600",
        'hetsched submit -f job.yaml --wait --idempotency-key "$CI_PIPELINE_ID"',
        "helm template app/ | hetsched submit -f - --policy spread",
    ),
    "mcp": ("hetsched mcp", "hetsched mcp --server https://hetsched.example --allow-writes"),
    "wait": (
        "hetsched wait w-3f2a --for finished --timeout 3600",
        "hetsched wait w-3f2a --for running --patient --watch",
    ),
    "get": (
        "hetsched get nodes",
        "hetsched get workloads -n ci --where state=not-now",
        "hetsched get workload w-3f2a",
        "hetsched get queue --watch",
        "hetsched get nodes -o json | jq -r '.items[].name'",
    ),
    "explain": (
        "hetsched explain w-3f2a",
        "hetsched explain ci/build-7",
        "hetsched explain 4711 --all-nodes",
        "hetsched explain w-3f2a --watch",
    ),
    "cancel": (
        'hetsched cancel w-3f2a --reason "superseded by a later pipeline"',
        "hetsched cancel w-3f2a --wait",
    ),
    "retry": ('hetsched retry w-3f2a --reason "the node is back"',),
    "plan": (
        "hetsched plan -f job.yaml --out job.plan",
        "hetsched submit -f job.yaml --plan job.plan",
    ),
    "hold": (
        'hetsched hold create -f gpu-job.yaml --for 30m --note "release 17"',
        "hetsched submit -f gpu-job.yaml --hold h-3f2a",
        "hetsched hold extend h-3f2a --for 30m",
        "hetsched get holds --watch",
    ),
    "batch": (
        "hetsched batch -f jobs/ --wait",
        "hetsched batch -f a.yaml -f b.yaml --all-or-nothing --idempotency-key night-7",
    ),
    "webhook": (
        "hetsched webhook add ci https://ci.example/hook --state succeeded --state failed",
        "hetsched webhook test wh-3f2a",
        "hetsched webhook rotate wh-3f2a --for 1d",
    ),
    "redeliver": (
        "hetsched get deliveries --where state=dead",
        "hetsched redeliver d-3f2a",
        "hetsched redeliver --dead --webhook wh-3f2a",
    ),
    "cluster": (
        "hetsched cluster add lab",
        "hetsched cluster add prod --kubeconfig ~/.kube/config --context prod --namespace ci",
        "hetsched cluster import lab -f nodes.yaml",
        "hetsched cluster test prod",
    ),
    "policy": (
        "hetsched policy preview spread --version 3 --fail-on infeasible",
        "hetsched policy diff spread 2 3",
        "hetsched policy golden check --policy spread",
    ),
    "shadow": ("hetsched shadow report --cluster prod",),
    "standalone": (
        "hetsched standalone",
        "hetsched standalone --port 8080 --data /srv/hetsched --no-demo",
    ),
    "scheduler": (
        "hetsched scheduler --in-cluster",
        "hetsched scheduler --kubeconfig ~/.kube/config",
    ),
    "backup": ("hetsched backup hetsched.backup",),
    "restore": ("hetsched restore hetsched.backup",),
    "health": ("hetsched health web",),
    "token": (
        "hetsched token create --role submitter --namespace ci --name pipelines",
        "hetsched token create --role viewer --days 7 -o json",
    ),
    "audit": ("hetsched audit verify",),
}


def examples(command: str) -> str | None:
    """Return the examples of the command as help text."""
    lines = EXAMPLES.get(command)
    if lines is None:
        return None
    return "\n".join(("[bold]Examples[/]", *(f"  [cyan]{escape(line)}[/]" for line in lines)))
