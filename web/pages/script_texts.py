"""Translated texts for the scripts, because JavaScript has no message catalogue."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from hetsched.placement.lifecycle import LABELS, State

_TONES: dict[str, str] = {
    State.PENDING: "info",
    State.BINDING: "info",
    State.NOT_NOW: "wait",
    State.NEVER_FITS: "bad",
    State.MISCONFIGURED: "bad",
    State.FAILED: "bad",
    State.CANCELLED: "",
    State.SUCCEEDED: "",
}


def state_texts() -> dict[str, str]:
    """Return the label of every state, including the verdicts."""
    return {state.value: str(label) for state, label in LABELS.items()}


def state_tone(state: str) -> str:
    """Return the tone of a state's chip: good, wait, bad, info or none."""
    return _TONES.get(state, "good")


def grid_texts() -> dict[str, str]:
    """Return the texts of the node grid."""
    return {
        "riscv": "RISC-V",
        "arm": "Arm",
        "x86": "x86",
        "unknown": _("ISA unknown"),
        "isa-unknown": _("ISA unknown"),
        "ready": _("ready"),
        "not-ready": _("not ready"),
        "cordoned": _("cordoned"),
        "cpu": _("CPU"),
        "memory": _("memory"),
        "gpu": _("GPU"),
        "short-cpu": _("CPU"),
        "short-memory": pgettext("three letters", "mem"),
        "short-gpu": _("GPU"),
        "pods": _("pods"),
        "cards-in-maintenance": _("{count} of {all} GPUs in maintenance, ending {time}"),
        "zones-in-maintenance": _("{count} NUMA zones in maintenance, ending {time}"),
    }


def result_texts() -> dict[str, str]:
    """Return the texts of a placement result: pods, verdicts, scores and reasons."""
    return {
        "banner": _("Feasibility at {time}. Nothing is reserved."),
        "placed-on": _("Placed"),
        "pod": _("Pod"),
        "node": _("Node"),
        "mode": _("Instruction set"),
        "isa-native": pgettext("message", "native"),
        "isa-emulated": pgettext("message", "emulated"),
        "isa-cross": pgettext("message", "cross"),
        "cards": _("GPUs"),
        "zones": _("Zones"),
        "score": _("Score"),
        "total": _("Total"),
        "score-of-total": _("The score is the total divided by the sum of the weights, {weights}."),
        "score-without": _(
            "These plugins have no score for this pod: {plugins}. The other plugins of the policy only filter."
        ),
        "rank": _("Rank"),
        "nodes": _("Nodes"),
        "reason": _("Reason"),
        "plugin": _("Plugin"),
        "code": _("Code"),
        "missing": _("missing"),
        "not-placed": _("Not placed"),
        "best-nodes-of": _("Best nodes for {pod}: {feasible} of {all} are feasible"),
        "first-pod": _(
            "Shows the first of {count} pods. The other pods are scheduled after the resources of the first pod are "
            "allocated."
        ),
        "chosen": _("number of pods placed here: {count}"),
        "refused": _("rejected: {reason}"),
        "balance": _("Balance {before} → {after}"),
        "policy": _("Policy {name} v{version}"),
        "snapshot": _("snapshot {digest}"),
        "funnel": _("Number of nodes that remain after each filter"),
        "pods-alike": _("{count} identical pods"),
        "more": _("and {count} more"),
        "copied": _("Copied"),
        "not-copied": _("The browser does not allow copying. Copy the text below."),
        "unreachable": _(
            "The server is unreachable. Your input is kept. The simulation runs again when you change it."
        ),
        "request-of": _("Request {id}"),
        "long": _("The YAML is too long for a link. The link does not contain it."),
        "milli-of": _("{milli} ‰ of GPU #{index}"),
        "card-of": "#{index}",
        "expected-use": _("Expected use"),
        "mib-each": _("{memory} MiB each"),
        "displaced": _("Displaced pods"),
        "new-node": _("New node"),
        "result": _("Result"),
        "evicted-at": _("Would be preempted (priority {priority})"),
        "evicted-against": _("Would be preempted (priority {priority}), violates the disruption budget {budget}"),
        "nowhere": _("no node"),
        "warnings": _("Manifest warnings"),
        "nearest-fit": _("Nearest fit"),
        "nearest-note": _(
            "The smallest changes to the request that make the pod fit. The scheduler verified each change."
        ),
        "change": _("Change"),
        "field": _("Field"),
        "try": _("Try it"),
        "margins": _("Tipping points"),
        "margin": _("{node} wins by {margin} over {runnerUp}."),
        "tie": _("{node} and {runnerUp} have equal totals. The node that is first by name wins."),
        "only-node": _("{node} is the only feasible node."),
        "supposed": _("simulated"),
        "see-there": _("Show the preview on the node page"),
        "firm": _("No change of a single weight makes another node win."),
        "weight": _("Weight"),
        "at": _("Threshold"),
        "winner": _("New winner"),
        "above": _("above {at}"),
        "below": _("below {at}"),
    }


def question_texts() -> dict[str, Any]:
    """Return the texts of the what-if page, except those of its results."""
    return {
        "to-answer": _("go to the result"),
        "hold-capacity": _("Hold this capacity…"),
        "hold-capacity-title": _("Hold this capacity?"),
        "hold-capacity-text": _(
            "hetsched reserves the capacity for all pods or for none. The scheduler does not place other pods on "
            "this capacity until the hold is used, cancelled or expired."
        ),
        "hold-capacity-confirm": _("Hold capacity"),
        "take-away": _("Remove {name}"),
        "no-such-node": _("This node does not exist"),
        "drained": _("drained"),
        "drains": _("{name} drained"),
        "other-nodes": _("and the nodes from YAML"),
        "reading": _("Reading {name} …"),
        "needs": _("{name} needs"),
        "needs-unknown": _("{name} is built for an architecture that hetsched does not support."),
        "too-large": _("The file is too large for a manifest."),
        "like": _("as requested by {name}"),
        "isa-means": _("{name}: {count} extensions including implied ones"),
        "implies": _("implies {names}"),
        "chip-implied": _("{name}, implied by the selection, on {count} nodes"),
        "chip-nodes": _("{name}, on {count} nodes"),
        "comparison": _("Comparison"),
        "exchange": _("Swap"),
        "this-one": _("This simulation"),
        "the-other": _("Pinned simulation"),
        "differs": _("differs"),
        "same-answers": _("Both results are equal."),
        "same-policy": _("Both results are equal because the inputs and the policy {policy} are equal."),
        "compared": {
            "asked": _("Input"),
            "fleet": _("Nodes"),
            "policy": _("Policy"),
            "verdict": _("Verdict"),
            "summary": _("Summary"),
            "placements": _("Placements"),
            "score": _("Mean score"),
            "evictions": _("Evicted"),
            "displaced": _("Displaced pods"),
            "nearest": _("Nearest fit"),
            "balance": _("Balance"),
        },
    }


def why_texts() -> dict[str, str]:
    """Return the texts of the explanation page for the current state."""
    return {
        "waits-no-more": _("The pod is no longer pending. Reload the page."),
        "ask-again": _("Simulate as a what-if"),
        "by-policy": _("Evaluated with policy {name}."),
        "would-do": _("{count} nodes fit, for example {node}"),
        "would-do-one": _("{node} fits"),
        "try-it": _("simulate as a what-if"),
        "no-step": _("No small change of the request makes {pod} fit now."),
        "blockers": _("Blocking pods: for each node, the smallest set of pods that must end before the pod fits"),
        "would-have-to-go": _("Pods"),
        "with-priority": _("priority {priority}"),
        "working-out": _("Computing …"),
        "as-decided": _("Shows all nodes in the state in which the decision was made."),
        "as-now": _("The nodes changed after the decision. The table shows the current state."),
    }


def repeat_texts() -> dict[str, str]:
    """Return the texts of a repeated decision."""
    return {
        "working-out": _("Computing …"),
        "again-same": _("Same result: {summary}."),
        "again-other": _("Different result: {summary}."),
        "by": _("Computed with {name} v{version} on the stored state of the decision. Nothing was written."),
        "what": _("Property"),
        "was": _("Original"),
        "now": _("Repeated"),
    }


def matrix_texts() -> dict[str, str]:
    """Return the texts of the score table of all nodes."""
    return {
        "every-node": _("All nodes"),
        "by-reason": _("Nodes by reason"),
        "all-nodes": _("all nodes"),
        "feasible": _("feasible"),
        "previous": _("Previous"),
        "next": _("Next"),
        "page-of": _("page {page} of {pages}"),
        "rows": _("{count} nodes"),
        "rank": _("Rank"),
        "node": _("Node"),
        "total": _("Total"),
        "reason": _("Reason"),
    }


def after_name(pod: str, summary: str) -> str:
    """Return a decision's summary without the leading pod name, for rows that show the name separately."""
    return summary.removeprefix(f"{pod} ")
