"""Inputs of commands (files and policies), and their conversion to contract types.

All inputs are read and validated before anything is computed or written. `-` is standard input, and may be used only
once. A policy is a name (of a built-in policy, or of a SchedulingPolicy in the input files) or a file with one
SchedulingPolicy. Without `--policy`, the policy named by the pod is used, or else the default of its namespace, or else
the default policy.

The options that select the target cluster, policy and priority are shared by commands that send pods to a server.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hetsched.adapters.files import Source, parse_cluster, parse_workload
from hetsched.adapters.objects.documents import MAX_BYTES
from hetsched.adapters.objects.export.cluster import compact_pods, write_cluster
from hetsched.adapters.objects.manifest_warnings import kind_hint, refuse_warnings
from hetsched.adapters.traces.openb import looks_like_openb
from hetsched.client import Goal
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.warnings import in_order
from hetsched.contracts.objects.workload import PodSpec

from .name_completion import complete_cluster, complete_policy
from .output import note, print_warnings

TargetCluster = Annotated[
    str,
    typer.Option(
        help="Target cluster; if omitted, the server's default or only cluster.", autocompletion=complete_cluster
    ),
]
PlacementPolicy = Annotated[str, typer.Option(help="Policy for placement.", autocompletion=complete_policy)]
Priority = Annotated[int | None, typer.Option(help="Priority of all pods.", show_default=False)]
WaitGoal = Annotated[
    Goal | None, typer.Option("--for", help="State to wait for with --wait (default: placed).", show_default=False)
]


# Parts of a workload file that are added to the cluster.
_OF_BOTH = ("running", "pod_usages", "quotas", "budgets")

if TYPE_CHECKING:
    from hetsched.engine.framework.policy import Policy

STDIN = "-"
_ADD_NODES = "Export the nodes with kubectl get nodes,pods -A -o yaml"
_MANIFESTS = (".yaml", ".yml", ".json", ".csv")
_DURATION = re.compile(r"([0-9]{1,7})([smhd]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

ClusterFiles = Annotated[
    list[str],
    typer.Option(
        "--cluster", metavar="FILE", help="Cluster file with nodes and running pods: YAML, JSON or openb node list."
    ),
]
PodFiles = Annotated[
    list[str],
    typer.Option(
        "--filename",
        "-f",
        metavar="FILE",
        help="File or folder with pods, Jobs, Deployments …; - reads standard input.",
    ),
]
WorkloadFiles = Annotated[
    list[str], typer.Option("--workload", metavar="FILE", help="Workload file: YAML, JSON or openb pod list.")
]


def read_sources(paths: Sequence[str], option: str) -> list[Source]:
    """Read files, all files of folders, and standard input (`-`), as (name, bytes).

    Raises: InputError `FileUnreadable`, `WorkloadEmpty` for an empty folder, or `InputRepeated`.
    """
    paths = [one for path in paths for one in _files(path, option)]
    if len(set(paths)) != len(paths):
        raise InputError("InputRepeated", "the same file is given twice", place=option, hint="Give each file once")
    sources = []
    for path in paths:
        try:
            if path == STDIN:
                sources.append(("standard input", sys.stdin.buffer.read(MAX_BYTES + 1)))
                continue
            with Path(path).open("rb") as file:
                sources.append((path, file.read(MAX_BYTES + 1)))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                "FileUnreadable",
                f"the file cannot be read: {reason}",
                place=f"{option} {path}",
                hint="Check the path and its permissions",
            ) from None
    return sources


def _files(path: str, option: str) -> list[str]:
    if path == STDIN or not Path(path).is_dir():
        return [path]
    found = sorted(str(one) for one in Path(path).rglob("*") if one.suffix in _MANIFESTS and one.is_file())
    if not found:
        raise InputError(
            "WorkloadEmpty",
            f"the folder contains no {', '.join(_MANIFESTS)} file",
            place=f"{option} {path}",
            hint="Use a folder with manifests, or a file",
        )
    return found


Strict = Annotated[
    bool, typer.Option("--strict", help="Reject unknown fields, annotations and kinds instead of printing warnings.")
]


def read_cluster(cluster: Sequence[str]) -> ClusterContent:
    """Read the files of the option --cluster.

    Raises: InputError, for example `ClusterWithoutNodes` if they do not contain nodes.
    """
    nodes = parse_cluster(read_sources(cluster, "--cluster"))
    if not nodes.nodes:
        raise InputError(
            "ClusterWithoutNodes",
            "the file contains no Node object" if cluster else "no file with nodes is given",
            place=f"--cluster {', '.join(cluster)}".rstrip(),
            hint=_ADD_NODES,
        )
    return nodes


def read_inputs(
    cluster: Sequence[str],
    workload: Sequence[str],
    *,
    option: str = "-f",
    replace: bool = False,
    strict: bool = False,
    quiet: bool = False,
) -> tuple[ClusterContent, ClusterContent]:
    """Read cluster files and workload files, and check them against each other.

    With `replace`, running pods with the names of requested pods are treated as deleted. With `strict`, warnings about
    the workload files are errors. Warnings about both kinds of files are printed unless `quiet`. `option` is the name
    of the option with the workload files.
    Returns: the cluster with all running pods, and the requests of the workload files with all warnings.
    Raises: InputError.
    """
    if STDIN in cluster and STDIN in workload:
        raise InputError(
            "InputRepeated",
            f"--cluster and {option} cannot both read standard input",
            place=option,
            hint="Write one of them to a file",
        )
    nodes = read_cluster(cluster)
    asked = parse_workload(read_sources(workload, option), known=nodes)
    asked = msgspec.structs.replace(asked, warnings=in_order(nodes.warnings + asked.warnings))
    if strict:
        refuse_warnings(asked.warnings)
    if not quiet:
        print_warnings(asked.warnings)
    for name in asked.left_out:
        note(f"{name} is ignored: it does not describe a fixed number of pods")
    if not asked.pending:
        raise InputError(
            "WorkloadEmpty",
            "the files contain no pod to place",
            place=f"{option} {', '.join(workload)}",
            hint=kind_hint(asked.warnings) or "Pods with spec.nodeName are treated as already running",
        )
    if replace:
        coming = {pod.key for pod in asked.pending}
        print_replaced(sorted(pod.key for pod in nodes.running if pod.key in coming))
        staying = tuple(pod for pod in nodes.running if pod.key not in coming)
        nodes = msgspec.structs.replace(nodes, running=staying)
    running = {pod.key for pod in nodes.running}
    for pod in asked.running + asked.pending:
        if pod.key in running:
            raise InputError(
                "PodExists",
                f"a pod named {pod.key} already runs in the cluster",
                place=option,
                hint="Rename or remove one of them",
            )
    both = {name: getattr(nodes, name) + getattr(asked, name) for name in _OF_BOTH}
    return msgspec.structs.replace(nodes, **both), asked


def print_replaced(keys: Sequence[str]) -> None:
    """Print the running pods that were treated as deleted."""
    if keys:
        more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
        note(f"running pods with the same names are treated as deleted: {', '.join(keys[:3])}{more}")


def check_key_option(key: str | None) -> str:
    """Return the key of `--idempotency-key`, or "" if the option is omitted.

    An empty value is rejected, because it is probably an unset pipeline variable and every retry would submit again.
    Raises: InputError `IdempotencyKeyInvalid`.
    """
    if key is not None and not key.strip():
        hint = "Check the variable of the pipeline, or omit the option to use a new key"
        raise InputError("IdempotencyKeyInvalid", "the idempotency key is empty", place="--idempotency-key", hint=hint)
    return key or ""


def read_manifest(paths: Sequence[str]) -> str:
    """Read the files of a submission as one manifest; the server validates its content.

    An openb list among other files is converted to Pod objects, because a manifest cannot contain both formats.
    Raises: InputError `FileUnreadable`, `ManifestNotUtf8`, or the errors of parsing an openb list.
    """
    sources = read_sources(paths, "-f")
    if len(sources) > 1:
        sources = [(name, _as_objects(name, data)) for name, data in sources]
    return "\n---\n".join(_text(source) for source in sources)


def read_each(paths: Sequence[str]) -> list[tuple[str, str]]:
    """Read files, and all manifests of folders, as a list of (name, manifest).

    Raises: InputError `FileUnreadable`, `ManifestNotUtf8` or `WorkloadEmpty`.
    """
    return [(name, _text((name, data))) for name, data in read_sources(paths, "-f")]


def parse_duration(text: str) -> int:
    """Return a duration such as 90s, 10m, 2h or 1d, or a number of seconds, in seconds.

    Raises: InputError `DurationInvalid`.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise InputError(
            "DurationInvalid",
            f"{text!r} is not a duration",
            place="--for",
            hint="Use a duration such as 90s, 10m, 2h or 1d",
        )
    return int(found[1]) * _SECONDS[found[2] or "s"]


def read_inventory(paths: Sequence[str]) -> str:
    """Read the files of an import as one text; multiple files are joined into one list of objects.

    Raises: InputError.
    """
    sources = read_sources(paths, "-f")
    if len(sources) == 1:
        return _text(sources[0])
    content = parse_cluster(sources)
    # Print the warnings here: the joined list omits the objects that some of them concern, so the server cannot
    # report them.
    print_warnings(content.warnings)
    return write_cluster(content).decode()


def read_kubeconfig(path: Path, context: str) -> dict[str, Any]:
    """Read only one context of a kubeconfig file, by default the current context; the server checks its program.

    Raises: InputError.
    """
    from hetsched.adapters.kubernetes.connections.kubeconfig import MAX_BYTES, one_context, read

    place = f"--kubeconfig {path}"
    try:
        with path.expanduser().open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            "FileUnreadable", f"the kubeconfig cannot be read: {error.strerror}", place=place,
            hint="Check the path and its permissions",
        ) from None  # fmt: skip
    return one_context(read(text, name=place), context=context, programs=None)


def _text(source: Source) -> str:
    name, data = source
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "ManifestNotUtf8", f"byte {error.start} is not UTF-8", place=name, hint="Save the file as UTF-8 text"
        ) from None


def _as_objects(name: str, data: bytes) -> bytes:
    if looks_like_openb(data) is None:
        return data
    pods = compact_pods(parse_workload([(name, data)]))
    return encode({"apiVersion": "v1", "kind": "List", "items": pods})


def choose_policies(
    arguments: Sequence[str], nodes: ClusterContent, asked: ClusterContent
) -> tuple[list[PolicySpec], list[PodSpec]]:
    """Return the policies to run, and the pending pods; a pod that names an unknown policy gets a problem.

    Raises: InputError `PolicyUnknown`, `PolicyAmbiguous`, `PolicyRepeated`, or the errors of a policy file.
    """
    from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT

    known = BUILTIN | {spec.name: spec for spec in nodes.policies + asked.policies}
    if arguments:
        specs = [_resolve_policy(argument, known) for argument in arguments]
        names = [spec.name for spec in specs]
        for name in names:
            if names.count(name) > 1:
                raise InputError(
                    "PolicyRepeated", f"policy {name} is given twice", place="--policy", hint="Give each policy once"
                )
        return specs, list(asked.pending)
    defaults = nodes.namespace_policies | asked.namespace_policies
    chosen: dict[str, None] = {}
    pods = []
    for pod in asked.pending:
        name = pod.policy or defaults.get(pod.namespace, "") or DEFAULT
        if name in known:
            chosen[name] = None
        else:
            field = pod.policy_field if pod.policy else f"default policy of namespace {pod.namespace}"
            problem = Problem("PolicyUnknown", field, Message("unknown policy {name}", name=repr(name)))
            pod = msgspec.structs.replace(pod, problems=(*pod.problems, problem))
        pods.append(pod)
    if len(chosen) > 1:
        message = f"the pods request different policies: {', '.join(sorted(chosen))}"
        raise InputError("PolicyAmbiguous", message, hint="Use --policy, or split the file")
    return [known[next(iter(chosen), DEFAULT)]], pods


def _resolve_policy(argument: str, known: dict[str, PolicySpec]) -> PolicySpec:
    place = f"--policy {argument}"
    if argument in known:
        return known[argument]
    if not Path(argument).is_file() and not {"/", "."} & set(argument):
        hint = f"Known policies: {', '.join(sorted(known))}; or use a file with a SchedulingPolicy"
        raise InputError("PolicyUnknown", "unknown policy", place=place, hint=hint)
    policies = parse_cluster(read_sources([argument], "--policy")).policies
    if len(policies) != 1:
        raise InputError(
            "PolicyAmbiguous",
            f"the file must contain one SchedulingPolicy object, not {len(policies)}",
            place=place,
            hint="Write one SchedulingPolicy into the file",
        )
    return policies[0]


def compile_choice(spec: PolicySpec, *, preemption: bool = True, implied: bool = False) -> Policy:
    """Compile a policy, with `implied` as in `compile_policy`; without `preemption`, victims are never selected.

    Raises: InputError.
    """
    from hetsched.engine.framework.policy import compile_policy
    from hetsched.engine.framework.registry import load_registry

    registry = load_registry()
    if not preemption:
        kept = tuple(u for u in spec.plugins if u.name not in registry or "post-filter" not in registry[u.name].points)
        spec = msgspec.structs.replace(spec, plugins=kept)
    try:
        return compile_policy(spec, registry, implied=implied)
    except InputError as error:
        raise error.at(f"policy {spec.name} ") from None
