"""Advice: which running pods to move, what each move gains and costs, and the plans that operators confirmed.

The query string contains the input, so a link repeats the search. The result is computed once per request, shows the
time of the computation, and is not updated. A user confirms the whole plan or single moves through REST, with a reason
and the ETag of the plan. Without input the page updates live and shows the progress of confirmed plans.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from hetsched.access.roles import Action
from hetsched.access.subject import subject_of
from hetsched.contracts.api.advice import Advice, AdviceVerdict, Goal, Move
from hetsched.contracts.errors import InputError
from hetsched.contracts.units import parse_amount
from hetsched.engine.simulation.movable_pods import MESSAGES
from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.connections import is_in_shadow
from hetsched.inventory.models import Cluster
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Rebalance, RebalanceMove, Workload
from web.api import bodies
from web.api.problems import RequestRefused
from web.api.whatif.advice import MOST_MOVES, AdviceQuestion, advice_for, plan_tag
from web.translation import translate

from ..actions import ActionButton, body_of, listed
from ..amounts import amount_words, duration
from ..shell import Shell, page

LATEST = 5
MOST_WORKLOADS = 100
MOST_MANIFEST = 6000
_SHOWN_BUDGETS = 3
PODS_OF_PLAN = "pods-of-plan"  # id prefix of the <template> elements with the moves of a confirmation
GOALS = {
    Goal.BALANCE: (
        gettext_lazy("Balance"),
        gettext_lazy("Finds the smallest number of moves that reaches the balance target."),
    ),
    Goal.ROOM: (
        gettext_lazy("Capacity"),
        gettext_lazy("Finds the smallest number of moves after which a pending workload or manifest fits."),
    ),
    Goal.RARE: (
        gettext_lazy("Rare nodes"),
        gettext_lazy(
            "Finds the smallest number of moves that frees capacity on rare nodes (GPUs, a rare instruction set or an "
            "unusual size) for pending pods that need these nodes."
        ),
    ),
}
STAYS = {
    "StaticPod": gettext_lazy("static pod"),
    "DaemonSet": gettext_lazy("pod of a DaemonSet"),
    "Held": gettext_lazy("reserved capacity of a hold"),
    "SafeToEvict": gettext_lazy("annotated as not safe to evict"),
    "LocalVolume": gettext_lazy("uses local storage on its node"),
    "Foreign": gettext_lazy("managed by another scheduler"),
    "Busy": gettext_lazy("binding, nominated or terminating"),
    "GangMember": gettext_lazy("another member of the pod's gang cannot move"),
    "NotReady": gettext_lazy("the request is invalid, so the pod could not be scheduled again"),
}
_TONES = {
    AdviceVerdict.PLAN: "info",
    AdviceVerdict.PARTLY: "wait",
    AdviceVerdict.NOTHING: "good",
    AdviceVerdict.NONE: "bad",
}
_PLAN_TONES = {Rebalance.RUNNING: "info", Rebalance.DONE: "good", Rebalance.STOPPED: "bad"}
_MOVE_TONES = {RebalanceMove.LEAVING: "info", RebalanceMove.MOVED: "good", RebalanceMove.STOPPED: "bad"}


@page("advice")
def advice(shell: Shell) -> HttpResponse:
    cluster = shell.cluster
    if cluster is None:
        return shell.render("advice", {})
    wanted = shell.text("goal")
    goal = Goal(wanted) if wanted in set(Goal) else Goal.BALANCE
    asked = bool(shell.text("look"))
    if not asked:
        shell.follow(cluster_topic(cluster))
    subject = subject_of(shell.request)
    may = subject.may(Action.OPERATE) and subject.namespaces is None and not is_in_shadow(cluster.pk)
    form = {
        "target": shell.text("target") or "0.95",
        "most": shell.text("most") or "10",
        "workload": shell.text("workload"),
        "manifest": shell.request.GET.get("manifest", "")[:MOST_MANIFEST].replace("\0", ""),
    }
    context: dict[str, Any] = {
        "goal": goal.value,
        "goal_text": GOALS[goal][1],
        "tabs": [
            {"label": label, "url": reverse("advice") + shell.keep(goal=one.value), "current": one is goal}
            for one, (label, _text) in GOALS.items()
        ],
        "form": form,
        "asked": asked,
        "may": may,
        "waiting": _pending_workloads(cluster) if goal is Goal.ROOM else [],
        "plans": [_plan(plan, may) for plan in _plans(cluster)],
        "waits_for_plan": cluster.rebalances.filter(state=Rebalance.RUNNING).exists(),
    }
    if asked:
        context.update(_answer(shell, cluster, goal, form, may))
    return shell.render("advice", context)


def _pending_workloads(cluster: Cluster) -> list[Workload]:
    """Return the workloads that have pods with the verdict not-now, the latest first."""
    rows = Workload.objects.filter(cluster=cluster, state=State.NOT_NOW.value).defer("manifest")
    return list(rows.order_by("-id")[:MOST_WORKLOADS])


def _plans(cluster: Cluster) -> list[Rebalance]:
    return list(Rebalance.objects.filter(cluster=cluster).select_related("cluster").prefetch_related("moves")[:LATEST])


# -- the result --------------------------------------------------------------------------------------------------------


def _answer(shell: Shell, cluster: Cluster, goal: Goal, form: dict[str, str], may: bool) -> dict[str, Any]:
    question: dict[str, Any] = {"goal": goal.value}
    try:
        question["mostMoves"] = int(form["most"])
        if goal is Goal.BALANCE:
            question["target"] = float(form["target"])
    except ValueError:
        return {"problem": {"code": "QueryInvalid", "detail": _("Enter a number."), "hint": ""}}
    if goal is not Goal.BALANCE and form["manifest"].strip():
        question["manifest"] = form["manifest"]
    elif goal is Goal.ROOM:
        question["workload"] = form["workload"]
    try:
        asked = bodies.convert(question, AdviceQuestion)
    except InputError:
        bounds = _(
            "The balance target must be between 0 and 1, and the maximum number of moves between 1 and %(most)d."
        ) % {"most": MOST_MOVES}
        return {"problem": {"code": "QueryInvalid", "detail": bounds, "hint": ""}}
    try:
        found = advice_for(cluster, asked)
    except InputError as error:
        return {"problem": {"code": error.code, "detail": translate(error.message), "hint": translate(error.hint)}}
    except RequestRefused as refused:
        return {"problem": {"code": refused.code, "detail": translate(refused.detail), "hint": translate(refused.hint)}}
    moves = [_move(shell, found, step, move) for step, move in enumerate(found.moves)]
    context: dict[str, Any] = {
        "found": found,
        "sentence": _sentence(found),
        "tone": _TONES[found.verdict],
        "moves": moves,
        "stays": [
            {
                "reason": STAYS.get(immovable.code, MESSAGES.get(immovable.code, immovable.code)),
                "pods": immovable.pods,
                "example": immovable.example,
            }
            for immovable in found.stays
        ],
        "lost": duration(found.cost.lost_seconds),
        "command": _command(cluster, question),
    }
    if may and found.moves:
        context["confirm"] = _confirm(cluster, found, question, None)
        context["dialogs"] = [(PODS_OF_PLAN, moves), *((f"{PODS_OF_PLAN}-{row['step']}", [row]) for row in moves)]
        if len(found.moves) > 1:
            for step, row in enumerate(moves):
                row["confirm"] = _confirm(cluster, found, question, step)
    return context


def _sentence(found: Advice) -> str:
    """Summarise the plan in one sentence."""
    count = len(found.moves)
    moves = ngettext("%(count)d move", "%(count)d moves", count) % {"count": count}
    figures = {"moves": moves, "before": f"{found.balance.before:.4f}", "after": f"{found.balance.after:.4f}"}
    if found.verdict is AdviceVerdict.NOTHING:
        return {
            Goal.BALANCE: _("No moves needed: the balance is already %(before)s.") % figures,
            Goal.ROOM: _("No moves needed: the workload already fits."),
            Goal.RARE: _("No moves needed: no pending pod needs capacity on a full rare node."),
        }[found.goal]
    if found.verdict is AdviceVerdict.NONE:
        return {
            Goal.BALANCE: _("No useful plan: no move improves the balance further."),
            Goal.ROOM: _("No useful plan: no set of moves within the limits frees enough capacity."),
            Goal.RARE: _("No useful plan: moving pods off rare nodes does not free enough capacity for a pending pod."),
        }[found.goal]
    if found.goal is Goal.BALANCE:
        text = _("After %(moves)s, the balance rises from %(before)s to %(after)s.") % figures
    else:
        nodes = ", ".join(dict.fromkeys(place.node for place in found.places))
        text = _("After %(moves)s, there is enough capacity on %(nodes)s.") % {**figures, "nodes": nodes}
    if found.verdict is AdviceVerdict.PARTLY:
        text = f"{text} {_('The plan only partly reaches the target.')}"
    return text


def _move(shell: Shell, found: Advice, step: int, move: Move) -> dict[str, Any]:
    return {
        "step": step + 1,
        "pods": [
            {
                "pod": pod,
                "age": None if pod.age_seconds is None else duration(pod.age_seconds),
                "ghost": _preview_url(shell, pod),
            }
            for pod in move.pods
        ],
        "gain": f"{move.balance.after - move.balance.before:+.4f}",
        "frees": [(name, amount_words(name, parse_amount(name, amount))) for name, amount in move.frees.items()],
        "budgets": move.budgets[:_SHOWN_BUDGETS],
        "why": _why(found, move),
    }


def _preview_url(shell: Shell, pod: Any) -> str:
    """Return the URL of the target node with a preview of the pod's allocation."""
    cpus = ",".join(zone.cpus for zone in pod.zones if zone.cpus)
    cards = [f"gpu:{card.index}/{card.milli}" for card in pod.gpus]
    parts = ([f"cpus:{cpus}"] if cpus else []) + cards
    if not parts:
        return reverse("node", args=[pod.to]) + shell.keep()
    tab = "numa" if cpus else "gpu"
    return reverse("node", args=[pod.to, tab]) + shell.keep(ghost=";".join(parts))


def _why(found: Advice, move: Move) -> str:
    nodes = ", ".join(dict.fromkeys(pod.from_ for pod in move.pods))
    if found.goal is Goal.BALANCE:
        return _("improves the balance of %(nodes)s") % {"nodes": nodes}
    return _("frees capacity on %(nodes)s for %(pods)s") % {"nodes": nodes, "pods": listed(list(move.makes_room_for))}


def _confirm(cluster: Cluster, found: Advice, question: dict[str, Any], step: int | None) -> ActionButton:
    """Return the button that confirms a plan, or one of its moves."""
    moves = found.moves if step is None else found.moves[step : step + 1]
    pods = [pod for move in moves for pod in move.pods]
    text = [
        ngettext(
            "%(count)d pod is evicted from its node and restarts on another node.",
            "%(count)d pods are evicted from their nodes, one move at a time, and restart on other nodes.",
            len(pods),
        )
        % {"count": len(pods)}
    ]
    alone = [pod.pod for pod in pods if not pod.comes_back]
    if alone:
        said = ngettext(
            "%(count)d of these pods is not recreated by a controller: %(names)s.",
            "%(count)d of these pods are not recreated by a controller: %(names)s.",
            len(alone),
        )
        text.append(said % {"count": len(alone), "names": listed(alone)})
    text.append(
        _(
            "hetsched checks each move again before starting it. The plan stops at the first move that is no "
            "longer possible."
        )
    )
    body = dict(question)
    if step is not None:
        body["steps"] = [step]
    label = _("Confirm all moves…") if len(moves) > 1 else _("Confirm…")
    return ActionButton(
        label=label,
        url=f"/api/v1/clusters/{cluster.name}/rebalances/",
        title=_("Confirm this plan?") if step is None else _("Start only move %(step)d?") % {"step": step + 1},
        text=" ".join(text),
        confirm=_("Start moves") if len(pods) > 1 else _("Start move"),
        body=body_of(body),
        etag=f'"{found.token}"',
        done=_("The plan was confirmed."),
        tone="bad",
        more=PODS_OF_PLAN if step is None else f"{PODS_OF_PLAN}-{step + 1}",
    )


def _command(cluster: Cluster, question: dict[str, Any]) -> str:
    """Return the hetsched command that computes the same plan."""
    parts = ["hetsched", "advise", "--of", cluster.name, "--goal", question["goal"]]
    if "target" in question:
        parts += ["--target", f"{question['target']:g}"]
    parts += ["--most-moves", str(question["mostMoves"])]
    return " ".join(parts) + (" -f pods.yaml" if "manifest" in question else "")


# -- confirmed plans ---------------------------------------------------------------------------------------------------


def _plan(plan: Rebalance, may: bool) -> dict[str, Any]:
    moves = list(plan.moves.all())
    over = sum(move.state == RebalanceMove.MOVED for move in moves)
    shown: dict[str, Any] = {
        "plan": plan,
        "goal": GOALS[Goal(plan.goal)][0],
        "tone": _PLAN_TONES[plan.state],
        "moves": [{"move": move, "tone": _MOVE_TONES.get(move.state, "")} for move in moves],
        "over": over,
        "ratio": over / len(moves) if moves else 0,
    }
    if may and plan.state == Rebalance.RUNNING:
        shown["stop"] = ActionButton(
            label=_("Stop…"),
            url=f"/api/v1/clusters/{plan.cluster.name}/rebalances/{plan.pk}/actions/",
            title=_("Stop this plan?"),
            text=_("Completed moves are not undone. The remaining moves do not start."),
            confirm=_("Stop the plan"),
            body='{"action":"stop"}',
            etag=plan_tag(plan),
            done=_("The plan was stopped."),
            tone="bad",
        )
    return shown
