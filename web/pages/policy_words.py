"""What the scripts of the policy desk say, translated here, since there is one catalogue."""

from __future__ import annotations

from django.utils.translation import gettext as _


def desk_words() -> dict[str, str]:
    """Return the sentences of the desk."""
    drafting, deciding = {**_draft_words(), **_diff_words()}, {**_deciding_words(), **_plan_words()}
    return {**drafting, **deciding, **_trying_words(), **_golden_words(), **_replay_words()}


def _draft_words() -> dict[str, str]:
    return {
        "checking": _("Checking…"),
        "unreachable": _("The server cannot be reached. The draft stays in this tab; try again."),
        "not-valid": _("not valid yet"),
        "unsaved": _("unsaved"),
        "unchanged": _("no draft"),
        "saved-draft": _("draft v{version}"),
        "earlier": _("earlier version v{version}"),
        "differs": _("{count} differences from v{version}."),
        "differs-one": _("1 difference from v{version}."),
        "kept-in-tab": _("Kept in this tab until you save it."),
        "begin-here": _("Change something to begin a draft; nothing takes effect until it is activated."),
        "yaml-alike": _("Form and text show the same draft; change either."),
        "restored": _("Your unsaved changes are here again."),
        "saved": _("Draft v{version} is saved. It decides nothing until it is activated."),
        "save-and-activate": _("Save and activate…"),
        "activate": _("Activate…"),
        "copied": _("Copied"),
        "set-count": _("{count} set"),
        "now-at": _("{plugin} is now at place {place}."),
        "draft": _("draft"),
    }


def _diff_words() -> dict[str, str]:
    return {
        "no-change": _("Nothing: both say the same."),
        "nothing-to-compare": _("There is no version yet to compare with."),
        "compare-later": _("Can be compared once the draft is valid."),
        "on-at": _("{plugin} · on at place {place}, weight {weight}"),
        "was-on-at": _("{plugin} · at place {place}, weight {weight}"),
        "weight-of": _("{plugin} · weight {weight}"),
        "place-of": _("{plugin} · place {place}"),
        "ties": _("Equal totals"),
        "description": _("Description"),
        "differs-title": _("From v{before}, which decides, to v{after}"),
        "two-edits": _("Two edits of this policy"),
        "two-edits-text": _("{author} saved version {version} since this page was loaded. Nothing of yours is lost."),
        "active-moved": _("v{version} decides by now. Nothing of yours is lost: look at the changes, then save again."),
        "meanwhile": _("{author} saved version {version} meanwhile; what is on this desk stays as it is."),
        "look-at-both": _("Look at both"),
        "open-it": _("Open it"),
        "chosen-already": _("What only one of you changed is chosen already."),
        "their-edit": _("Theirs: v{version} by {author}"),
        "my-edit": _("Mine: this draft"),
        "edits-alike": _("Both say the same."),
        "merge-edits": _("Take what is chosen"),
        "keep-mine": _("Keep all of mine"),
        "take-theirs": _("Take theirs, drop mine"),
        "plugin": _("Plugin"),
        "off": _("off"),
        "weight": _("weight"),
        "order": _("Order"),
        "their-order": _("their order"),
        "my-order": _("my order"),
    }


def _deciding_words() -> dict[str, str]:
    return {
        "activate-title": _("Let v{version} of {name} decide?"),
        "activate-text": _("It decides from the next batch on. What is placed stays where it is."),
        "activate-confirm": _("Activate v{version}"),
        "activated": _("Version {version} decides from the next batch on."),
        "rollback-title": _("Go back to v{version} of {name}?"),
        "rollback-text": _("The version that decided before decides again from the next batch on."),
        "rollback-confirm": _("Roll back"),
        "no-goldens": _("No golden placement watches this policy."),
        "goldens-hold": _("{kept} of {all} golden placements hold under it."),
        "goldens-break": _("{broken} of {all} golden placements break, so it cannot be activated:"),
        "expected-got": _("expected {expected}, got {got}"),
    }


def _plan_words() -> dict[str, str]:
    return {
        "plan-add": _("Plan an activation"),
        "plan-add-text": _(
            "Carried out by the scheduler itself, through the same door: golden placements may refuse it."
        ),
        "plan-save": _("Save the plan"),
        "plan-saved": _("Plan {name} is saved."),
        "plan-change": _("Change plan {name}"),
        "plan-remove": _("Remove plan {name}?"),
        "plan-remove-text": _("What decides now goes on deciding."),
        "plan-remove-confirm": _("Remove"),
        "plan-removed": _("Plan {name} is removed."),
        "plan-tried": _("By the last {samples} measurements it would have switched {count} times:"),
        "plan-never": _("By the last {samples} measurements it would not have switched."),
        "plan-switch": _("{at}: v{version}, at {value}"),
    }


def _trying_words() -> dict[str, str]:
    return {
        "not-again": _("This decision cannot be worked out again: its state is gone, or no node was feasible."),
        "still-wins": _("{node} still wins, by {margin} points."),
        "now-wins": _("{node} wins instead of {other}, by {margin} points."),
        "only-node": _("{node} is the only node that was feasible."),
        "tied": _("{node} and {other} are equal; the first by name wins."),
        "not-scored": _("Did not score then, so it is left out here: {plugins}."),
        "weights-only": _("Only weights count here; filters and parameters are as they were."),
        "the-decision": _("The decision"),
        "node": _("Node"),
        "points-then": _("Points then"),
        "points-now": _("Points now"),
        "tips-above": _("above {at} {node} wins"),
        "tips-below": _("below {at} {node} wins"),
    }


def _golden_words() -> dict[str, str]:
    return {
        "golden-from": _("Agree on this placement…"),
        "golden-add": _("Agree on a placement"),
        "golden-add-text": _(
            "It is judged on the cluster's nodes as if they were empty: rather say what must hold, such as labels or "
            "an instruction set, than name one node. No version that breaks it can be activated from then on."
        ),
        "golden-agree": _("Agree"),
        "golden-added": _("{name} is agreed: expected {expected}, got {got}."),
        "golden-added-broken": _("{name} is agreed, and broken as it is: expected {expected}, got {got}."),
        "golden-change": _("Change {name}"),
        "golden-remove": _("Take {name} back?"),
        "golden-remove-text": _("It guards nothing any more."),
        "golden-remove-confirm": _("Take back"),
        "golden-removed": _("{name} is taken back."),
        "golden-kept": _("holds"),
        "golden-broken": _("breaks"),
        "golden-unknown": _("unknown"),
    }


def _replay_words() -> dict[str, str]:
    return {
        "state-waiting": _("waits for a worker"),
        "state-running": _("running"),
        "state-done": _("done"),
        "state-failed": _("failed"),
        "state-cancelled": _("cancelled"),
        "replayed": _("{decisions} decisions replayed under v{version}, from {from} to {to}, in {seconds} s."),
        "progress": _("{percent} % of the decisions are replayed"),
        "moved": _("moved"),
        "same": _("same"),
        "infeasible": _("newly infeasible"),
        "feasible": _("newly feasible"),
        "pendingBoth": _("placed under neither"),
        "measure": _("Measure"),
        "before": _("v{version}, as it is"),
        "after": _("v{version}, as it would be"),
        "change": _("Change"),
        "pod": _("Pod"),
        "from": _("From"),
        "to": _("To"),
        "margin": _("Margin"),
        "why": _("Why"),
        "decision": _("Decision"),
        "all": _("all"),
        "nothing-moves": _("Nothing would have moved."),
        "none-of-kind": _("None of this kind."),
        "shown-of": _("{shown} of {all} are shown; the CSV has all of them."),
        "cluster": _("Cluster"),
        "last": _("Last decisions"),
        "replay": _("Replay"),
        "save-and-replay": _("Save the draft and replay"),
        "cancel": _("Cancel"),
        "replay-failed": _("The replay failed: {message}"),
        "fidelity": _(
            "{equal} of {compared} recorded decisions came out the same again under the version that decided, those "
            "without a place included."
        ),
        "nowhere": _("nowhere"),
        "points": _("{margin} points"),
        "placed": _("Pods placed"),
        "pending": _("Pods not placed"),
        "balance": _("Balance (0–1, more is better)"),
        "gpuFragmentation": _("GPU fragmentation (0–1, less is better)"),
        "unallocatedGpus": _("GPUs not allocated (cards)"),
        "gpuAllocation": _("GPU allocation (0–1)"),
        "cpuUtilization": _("CPU requested (0–1)"),
        "memoryUtilization": _("Memory requested (0–1)"),
    }
