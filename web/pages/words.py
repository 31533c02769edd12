"""The words that scripts write into pages, translated here, since there is one catalogue."""

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


def state_words() -> dict[str, str]:
    """Return the label of every state; verdicts are states."""
    return {state.value: str(label) for state, label in LABELS.items()}


def state_tone(state: str) -> str:
    """Return the tone of a state's chip: good, wait, bad, info or none."""
    return _TONES.get(state, "good")


def grid_words() -> dict[str, str]:
    """Return what the node grid says."""
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
    }


def result_words() -> dict[str, str]:
    """Return the sentences of an answer."""
    return {
        "banner": _("Feasibility at {time}, not a reservation."),
        "placed-on": _("Placed"),
        "pod": _("Pod"),
        "node": _("Node"),
        "mode": _("Instructions"),
        "cards": _("Cards"),
        "zones": _("Zones"),
        "score": _("Score"),
        "total": _("Total"),
        "score-of-total": _("The score is the total divided by the sum of the weights, {weights}."),
        "score-without": _(
            "Not among them, with nothing to rate this pod by: {plugins}. The other plugins of the policy only filter."
        ),
        "rank": _("Rank"),
        "nodes": _("Nodes"),
        "reason": _("Reason"),
        "plugin": _("Plugin"),
        "code": _("Code"),
        "missing": _("missing"),
        "not-placed": _("Not placed"),
        "best-nodes-of": _("Best nodes for {pod}: {feasible} of {all} are feasible"),
        "first-pod": _("Shown for the first of {count} pods; the others see what it took."),
        "chosen": _("chosen for {count}"),
        "refused": _("refused: {reason}"),
        "balance": _("Balance {before} → {after}"),
        "policy": _("Policy {name} v{version}"),
        "snapshot": _("snapshot {digest}"),
        "refused-nodes": _("Refused nodes:"),
        "funnel": _("What is left after each rule"),
        "pods-alike": _("{count} pods alike"),
        "more": _("and {count} more"),
        "copied": _("Copied"),
        "not-copied": _("The browser does not allow copying; the text is below."),
        "unreachable": _("The server cannot be reached. The question stays; it is asked again when you change it."),
        "code-of": _("Code {code}, request {id}"),
        "long": _("The YAML is too long for the address; a link will not carry it."),
        "milli-of": _("{milli} ‰ of #{index}"),
        "card-of": "#{index}",
        "expected-use": _("Expected use"),
        "mib-each": _("{memory} MiB each"),
        "displaced": _("Would move"),
        "evicted-at": _("Would be evicted (priority {priority})"),
        "evicted-against": _("Would be evicted (priority {priority}) against the disruption budget {budget}"),
        "nowhere": _("nowhere"),
        "nearest-fit": _("Nearest fit"),
        "nearest-note": _("The smallest changes with which it would have been placed, each tried by the same rules."),
        "change": _("Change"),
        "field": _("Field"),
        "try": _("Try it"),
        "margins": _("What would change the winner"),
        "margin": _("{node} wins by {margin} over {runnerUp}."),
        "tie": _("{node} and {runnerUp} are equal; the first by name wins."),
        "only-node": _("{node} is the only node that fits."),
        "supposed": _("supposed"),
        "see-there": _("See it drawn into the node as it is now"),
        "firm": _("No change of one weight alone would make another node win."),
        "weight": _("Weight"),
        "at": _("Another wins"),
        "winner": _("Then"),
        "above": _("above {at}"),
        "below": _("below {at}"),
    }


def question_words() -> dict[str, Any]:
    """Return what the what-if page says besides its answers."""
    return {
        "to-answer": _("to the answer"),
        "keep-room": _("Keep this room…"),
        "keep-room-title": _("Keep this room for a while?"),
        "keep-room-text": _(
            "What every pod would hold is booked, for all of them or for none. "
            "Nobody else is placed there until the hold is used, cancelled or over."
        ),
        "keep-room-confirm": _("Keep the room"),
        "take-away": _("Take {name} away"),
        "no-such-node": _("There is no node of this name"),
        "drained": _("drained first"),
        "drains": _("without {name}"),
        "other-nodes": _("and the nodes given as YAML"),
        "reading": _("Reading {name} …"),
        "needs": _("{name} needs"),
        "needs-unknown": _("What {name} needs is not known: it is for a machine that nodes here cannot be."),
        "too-large": _("The file is too large for a manifest."),
        "like": _("as {name} asked"),
        "isa-means": _("{name}: {count} extensions with all it implies"),
        "implies": _("implies {names}"),
        "chip-implied": _("{name}, implied by what is chosen, on {count} nodes"),
        "chip-nodes": _("{name}, on {count} nodes"),
        "comparison": _("Side by side"),
        "exchange": _("Exchange the two"),
        "this-one": _("This question"),
        "the-other": _("The one beside"),
        "differs": _("differs"),
        "compared": {
            "asked": _("Asked"),
            "fleet": _("Nodes"),
            "policy": _("Policy"),
            "verdict": _("Verdict"),
            "summary": _("In a sentence"),
            "placements": _("Where"),
            "score": _("Mean score"),
            "evictions": _("Evicted"),
            "displaced": _("Would move"),
            "nearest": _("Nearest fit"),
            "balance": _("Balance"),
        },
    }


def why_words() -> dict[str, str]:
    """Return what the why page says about a pod as of now."""
    return {
        "waits-no-more": _("It does not wait any more; load the page again."),
        "ask-again": _("Ask again as a what-if"),
        "by-policy": _("By policy {name}."),
        "would-do": _("{count} nodes would do, such as {node}"),
        "would-do-one": _("{node} would do"),
        "try-it": _("ask it as a what-if"),
        "no-step": _("No small change of what {pod} asks would place it now."),
        "blockers": _("Who stands in its way: on each node the fewest pods that would have to be gone"),
        "would-have-to-go": _("Pods"),
        "with-priority": _("priority {priority}"),
        "working-out": _("Working it out …"),
        "as-decided": _("Every node as it was when this was decided."),
        "as-now": _("The nodes changed since it was decided; this is how they would answer now."),
    }


def again_words() -> dict[str, str]:
    """Return what is said of a decision that was made again."""
    return {
        "working-out": _("Working it out …"),
        "again-same": _("The same answer: {summary}."),
        "again-other": _("Another answer: {summary}."),
        "by": _("By {name} v{version}, on the state that was decided on; nothing was written."),
        "what": _("What"),
        "was": _("Was"),
        "now": _("Now"),
    }


def matrix_words() -> dict[str, str]:
    """Return what the table of every node says."""
    return {
        "every-node": _("Every node"),
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
    """Return a decision's sentence without the pod's name in front, for places where the name stands beside it."""
    return summary.removeprefix(f"{pod} ")
