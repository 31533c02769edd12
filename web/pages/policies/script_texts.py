"""Translated texts for the scripts of the policy editor, because JavaScript has no message catalogue."""

from __future__ import annotations

from django.utils.translation import gettext as _


def editor_texts() -> dict[str, str]:
    """Return the texts of the editor."""
    drafting, deciding = {**_draft_texts(), **_diff_words()}, {**_decision_texts(), **_plan_texts()}
    return {**drafting, **deciding, **_trial_texts(), **_golden_texts(), **_replay_texts()}


def _draft_texts() -> dict[str, str]:
    return {
        "checking": _("Checking…"),
        "unreachable": _("The server is unreachable. The draft stays in this tab. Try again."),
        "not-valid": _("not valid"),
        "unsaved": _("unsaved"),
        "unchanged": _("no draft"),
        "saved-draft": _("draft v{version}"),
        "earlier": _("earlier version v{version}"),
        "differs": _("{count} differences from v{version}."),
        "differs-one": _("1 difference from v{version}."),
        "kept-in-tab": _("Stored in this tab until you save it."),
        "begin-here": _("Edit the policy to start a draft. A draft takes effect only after activation."),
        "yaml-alike": _("The form and the YAML show the same draft. You can edit either."),
        "restored": _("Your unsaved changes were restored."),
        "saved": _("Draft v{version} is saved. It takes effect only after activation."),
        "save-and-activate": _("Save draft and activate…"),
        "activate": _("Activate…"),
        "copied": _("Copied"),
        "set-count": _("parameters set: {count}"),
        "now-at": _("{plugin} is now at position {place}."),
        "draft": _("draft"),
    }


def _diff_words() -> dict[str, str]:
    return {
        "no-change": _("No changes: both versions are equal."),
        "nothing-to-compare": _("There is no version to compare with."),
        "compare-later": _("The comparison needs a valid draft."),
        "on-at": _("{plugin} · added at position {place}, weight {weight}"),
        "was-on-at": _("{plugin} · position {place}, weight {weight}"),
        "weight-of": _("{plugin} · weight {weight}"),
        "place-of": _("{plugin} · position {place}"),
        "ties": _("Tie breaking"),
        "description": _("Description"),
        "differs-title": _("From v{before} (active) to v{after}"),
        "two-edits": _("Edit conflict"),
        "two-edits-text": _("{author} saved version {version} after you loaded this page. Your changes are not lost."),
        "active-moved": _("v{version} is now active. Your changes are not lost. Check the changes, then save again."),
        "newer": _("{author} saved version {version}. Your editor content did not change."),
        "look-at-both": _("Compare both"),
        "open-it": _("Open version"),
        "chosen-already": _("Fields that only one of the two versions changed are already selected."),
        "their-edit": _("Theirs: v{version} by {author}"),
        "my-edit": _("Mine: this draft"),
        "edits-alike": _("Both versions are equal."),
        "merge-edits": _("Apply selection"),
        "keep-mine": _("Keep all my changes"),
        "take-theirs": _("Use their version and discard mine"),
        "plugin": _("Plugin"),
        "off": _("off"),
        "weight": _("weight"),
        "order": _("Order"),
        "their-order": _("their order"),
        "my-order": _("my order"),
    }


def _decision_texts() -> dict[str, str]:
    return {
        "activate-title": _("Activate v{version} of {name}?"),
        "activate-text": _("The version takes effect with the next scheduling batch. Placed pods are not moved."),
        "activate-confirm": _("Activate v{version}"),
        "activated": _("Version {version} takes effect with the next scheduling batch."),
        "rollback-title": _("Roll back to v{version} of {name}?"),
        "rollback-text": _("This version was active before. It takes effect again with the next scheduling batch."),
        "rollback-confirm": _("Roll back"),
        "rollforward-title": _("Roll forward to v{version} of {name}?"),
        "rollforward-confirm": _("Roll forward"),
        "blocked-by-goldens": _(
            "The draft breaks golden placements and cannot be activated. Change the draft, or change or "
            "remove the golden placements."
        ),
        "no-goldens": _("No golden placement applies to this policy."),
        "goldens-hold": _("{kept} of {all} golden placements pass with this draft."),
        "goldens-break": _("The draft breaks {broken} of {all} golden placements and cannot be activated:"),
        "expected-got": _("expected {expected}, got {got}"),
    }


def _plan_texts() -> dict[str, str]:
    return {
        "plan-add": _("Plan an activation"),
        "plan-add-text": _(
            "The scheduler activates the version when the trigger of the plan fires. It rejects the activation if the "
            "version breaks a golden placement."
        ),
        "plan-save": _("Save plan"),
        "plan-saved": _("Plan {name} was saved."),
        "plan-change": _("Change plan {name}"),
        "plan-remove": _("Remove plan {name}?"),
        "plan-remove-text": _("The active version does not change."),
        "plan-remove-confirm": _("Remove"),
        "plan-removed": _("Plan {name} was removed."),
        "plan-tried": _(
            "On the last {samples} recorded values, the plan would have switched the version {count} times:"
        ),
        "plan-never": _("On the last {samples} recorded values, the plan would not have switched the version."),
        "plan-switch": _("{at}: v{version}, metric value {value}"),
    }


def _trial_texts() -> dict[str, str]:
    return {
        "not-again": _("This decision cannot be repeated. Its stored state was deleted, or no node was feasible."),
        "still-wins": _("{node} still wins by {margin} points."),
        "now-wins": _("{node} wins instead of {other} by {margin} points."),
        "only-node": _("{node} was the only feasible node."),
        "tied": _("{node} and {other} have equal totals. The node that is first by name wins."),
        "not-scored": _("These plugins do not score this pod and are not listed: {plugins}."),
        "weights-only": _("This test applies only the weights. Filters and parameters are those of the decision."),
        "the-decision": _("The decision"),
        "node": _("Node"),
        "points-then": _("Points at decision time"),
        "points-now": _("Points now"),
        "tips-above": _("above {at}, {node} wins"),
        "tips-below": _("below {at}, {node} wins"),
    }


def _golden_texts() -> dict[str, str]:
    return {
        "golden-from": _("Add as golden placement…"),
        "golden-add": _("Add a golden placement"),
        "golden-add-text": _(
            "A golden placement created from a decision is evaluated on the cluster state at the time of that "
            "decision. All others are evaluated on empty nodes, so their expected result should be node labels or an "
            "instruction set instead of a single node name. A policy version that breaks a golden placement cannot be "
            "activated."
        ),
        "golden-then": _("Evaluate on the cluster state of decision {decision} (otherwise on empty nodes)"),
        "golden-save": _("Add"),
        "golden-saved": _("{name} was added: expected {expected}, got {got}."),
        "golden-added-broken": _("{name} was added but currently fails: expected {expected}, got {got}."),
        "golden-change": _("Change {name}"),
        "golden-remove": _("Remove {name}?"),
        "golden-remove-text": _("Later policy versions are not checked against this golden placement."),
        "golden-remove-confirm": _("Remove"),
        "golden-removed": _("{name} was removed."),
        "golden-kept": _("passes"),
        "golden-broken": _("fails"),
        "golden-unknown": _("unknown"),
    }


def _replay_texts() -> dict[str, str]:
    return {
        "state-waiting": _("queued for a worker"),
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
        "pendingBoth": _("placed by neither version"),
        "measure": _("Metric"),
        "before": _("v{version} (current)"),
        "after": _("v{version} (simulated)"),
        "change": _("Change"),
        "pod": _("Pod"),
        "from": _("From"),
        "to": _("To"),
        "margin": _("Margin"),
        "why": _("Reason"),
        "decision": _("Decision"),
        "all": _("all"),
        "nothing-moves": _("No placements would change."),
        "none-of-kind": _("No changes of this kind."),
        "shown-of": _("Shows {shown} of {all}. The CSV file contains all."),
        "cluster": _("Cluster"),
        "last": _("Latest decisions"),
        "replay": _("Replay"),
        "save-and-replay": _("Save draft and replay"),
        "replay-asks": _("Replay…"),
        "replay-title": _("Save the draft first?"),
        "replay-text": _(
            "Only saved versions can be replayed. This saves the draft as a new version without activating it."
        ),
        "cancel": _("Cancel"),
        "replay-failed": _("The replay failed: {message}"),
        "fidelity": _(
            "When replayed with their original policy version, {equal} of {compared} recorded decisions gave the same "
            "result (including pods that were not placed)."
        ),
        "nowhere": _("no node"),
        "points": _("{margin} points"),
        "placed": _("Pods placed"),
        "pending": _("Pods not placed"),
        "balance": _("Balance (0–1, higher is better)"),
        "gpuFragmentation": _("GPU fragmentation (0–1, lower is better)"),
        "unallocatedGpus": _("Unallocated GPUs"),
        "gpuAllocation": _("GPU allocation (0–1)"),
        "cpuUtilization": _("CPU requested (0–1)"),
        "memoryUtilization": _("Memory requested (0–1)"),
    }
