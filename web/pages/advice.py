"""Advice: which running pods to move, what each move gains and costs, and the plans that operators confirmed.

Rule: the question stands in the address, so a link asks it again; the answer is worked out for this page and does not
change under the hand: it says of when it is. A plan is confirmed as a whole or move by move, with a reason and the
plan's tag, through the same REST as everybody's. Without a question the page follows the cluster, and shows how far
confirmed plans are.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from hetsched.access.roles import Action
from hetsched.access.subject import subject_of
from hetsched.contracts.advice import Advice, AdviceVerdict, Goal, Move
from hetsched.contracts.errors import InputError
from hetsched.contracts.units import parse_amount
from hetsched.engine.simulation.movable_pods import MESSAGES
from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.connections import in_shadow
from hetsched.inventory.models import Cluster
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Rebalance, RebalanceMove, Workload
from web.api import bodies
from web.api.advice import MOST_MOVES, AdviceQuestion, advice_for, plan_tag
from web.api.problems import Refused

from .acting import Act, body_of
from .amounts import amount_words
from .shell import Shell, page
from .told import told

LATEST = 5
MOST_WORKLOADS = 100
MOST_MANIFEST = 6000
_SHOWN_BUDGETS = 3
GOALS = {
    Goal.BALANCE: (gettext_lazy("Balance"), gettext_lazy("The fewest moves until every node is used evenly.")),
    Goal.ROOM: (gettext_lazy("Room"), gettext_lazy("The fewest moves after which a shape fits that finds no node.")),
    Goal.RARE: (
        gettext_lazy("Rare nodes"),
        gettext_lazy("The fewest moves after which who needs cards, vectors or size finds them free."),
    ),
}
STAYS = {
    "StaticPod": gettext_lazy("its kubelet runs it from a file"),
    "DaemonSet": gettext_lazy("a DaemonSet runs one on each node"),
    "Held": gettext_lazy("it is room that is held for a pod to come"),
    "SafeToEvict": gettext_lazy("its owner says that it is not to be evicted"),
    "LocalVolume": gettext_lazy("it keeps data on its node"),
    "Foreign": gettext_lazy("another scheduler places it"),
    "Busy": gettext_lazy("it is being bound, nominated or taken off"),
    "GangMember": gettext_lazy("a member of its gang stays"),
    "NotReady": gettext_lazy("what it asks for is wrong, so nobody would place it again"),
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
    may = subject.may(Action.OPERATE) and subject.namespaces is None and not in_shadow(cluster.pk)
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
        "waiting": _waiting(cluster) if goal is Goal.ROOM else [],
        "plans": [_plan(plan, may) for plan in _plans(cluster)],
        "waits_for_plan": cluster.rebalances.filter(state=Rebalance.RUNNING).exists(),
    }
    if asked:
        context.update(_answer(shell, cluster, goal, form, may))
    return shell.render("advice", context)


def _waiting(cluster: Cluster) -> list[Workload]:
    """Return the workloads that found no room, the latest first."""
    rows = Workload.objects.filter(cluster=cluster, state=State.NOT_NOW.value).defer("manifest")
    return list(rows.order_by("-id")[:MOST_WORKLOADS])


def _plans(cluster: Cluster) -> list[Rebalance]:
    return list(Rebalance.objects.filter(cluster=cluster).select_related("cluster").prefetch_related("moves")[:LATEST])


# -- the answer --------------------------------------------------------------------------------------------------------


def _answer(shell: Shell, cluster: Cluster, goal: Goal, form: dict[str, str], may: bool) -> dict[str, Any]:
    question: dict[str, Any] = {"goal": goal.value}
    try:
        question["mostMoves"] = int(form["most"])
        if goal is Goal.BALANCE:
            question["target"] = float(form["target"])
    except ValueError:
        return {"problem": {"code": "QueryInvalid", "detail": _("A number is expected."), "hint": ""}}
    if goal is not Goal.BALANCE and form["manifest"].strip():
        question["manifest"] = form["manifest"]
    elif goal is Goal.ROOM:
        question["workload"] = form["workload"]
    try:
        asked = bodies.convert(question, AdviceQuestion)
    except InputError:
        bounds = _("The balance to reach is from 0 to 1, and moves are from 1 to %(most)d.") % {"most": MOST_MOVES}
        return {"problem": {"code": "QueryInvalid", "detail": bounds, "hint": ""}}
    try:
        found = advice_for(cluster, asked)
    except InputError as error:
        return {"problem": {"code": error.code, "detail": told(error.message), "hint": told(error.hint)}}
    except Refused as refused:
        return {"problem": {"code": refused.code, "detail": told(refused.detail), "hint": told(refused.hint)}}
    moves = [_move(shell, found, step, move) for step, move in enumerate(found.moves)]
    context: dict[str, Any] = {
        "found": found,
        "sentence": _sentence(found),
        "tone": _TONES[found.verdict],
        "moves": moves,
        "stays": [
            {"reason": STAYS.get(one.code, MESSAGES.get(one.code, one.code)), "pods": one.pods, "example": one.example}
            for one in found.stays
        ],
        "hours": found.cost.lost_seconds / 3600,
        "command": _command(cluster, question),
    }
    if may and found.moves:
        context["confirm"] = _confirm(cluster, found, question, None)
        if len(found.moves) > 1:
            for step, row in enumerate(moves):
                row["confirm"] = _confirm(cluster, found, question, step)
    return context


def _sentence(found: Advice) -> str:
    """Say what the plan comes to."""
    count = len(found.moves)
    moves = ngettext("%(count)d move", "%(count)d moves", count) % {"count": count}
    figures = {"moves": moves, "before": f"{found.balance.before:.4f}", "after": f"{found.balance.after:.4f}"}
    if found.verdict is AdviceVerdict.NOTHING:
        return {
            Goal.BALANCE: _("Nothing is to be done: the balance is %(before)s already.") % figures,
            Goal.ROOM: _("Nothing is to be done: there is room already."),
            Goal.RARE: _("Nothing is to be done: nobody sits on a rare node that others need without needing it."),
        }[found.goal]
    if found.verdict is AdviceVerdict.NONE:
        return {
            Goal.BALANCE: _("No move evens the cluster out any further."),
            Goal.ROOM: _("No moves within the bounds make room."),
            Goal.RARE: _("Those who sit on rare nodes without needing them have no other place."),
        }[found.goal]
    if found.goal is Goal.BALANCE:
        said = _("By %(moves)s the balance rises from %(before)s to %(after)s.") % figures
    elif found.goal is Goal.ROOM:
        nodes = ", ".join(dict.fromkeys(place.node for place in found.places))
        said = _("By %(moves)s there is room on %(nodes)s.") % {**figures, "nodes": nodes}
    else:
        said = _("By %(moves)s rare nodes are free for those who need them.") % figures
    if found.verdict is AdviceVerdict.PARTLY:
        said = f"{said} {_('That goes only a part of the way.')}"
    return said


def _move(shell: Shell, found: Advice, step: int, move: Move) -> dict[str, Any]:
    return {
        "step": step + 1,
        "pods": [
            {
                "pod": pod,
                "hours": None if pod.age_seconds is None else pod.age_seconds / 3600,
                "ghost": _ghost(shell, pod),
            }
            for pod in move.pods
        ],
        "gain": f"{move.balance.after - move.balance.before:+.4f}",
        "frees": [(name, amount_words(name, parse_amount(name, amount))) for name, amount in move.frees.items()],
        "budgets": move.budgets[:_SHOWN_BUDGETS],
        "why": _why(found, move),
    }


def _ghost(shell: Shell, pod: Any) -> str:
    """Return the address of the new node, where it shows as a ghost what the pod would hold."""
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
        return _("evens out %(nodes)s") % {"nodes": nodes}
    if found.goal is Goal.ROOM:
        return _("makes room on %(nodes)s") % {"nodes": nodes}
    return move.why


def _confirm(cluster: Cluster, found: Advice, question: dict[str, Any], step: int | None) -> Act:
    """Return the button that has a plan, or one move of it, carried out."""
    moves = found.moves if step is None else found.moves[step : step + 1]
    pods = [pod for move in moves for pod in move.pods]
    text = [
        ngettext(
            "%(count)d pod is taken off its node and starts anew on another.",
            "%(count)d pods are taken off their nodes, one move after the other, and start anew on others.",
            len(pods),
        )
        % {"count": len(pods)}
    ]
    alone = [pod.pod for pod in pods if not pod.comes_back]
    if alone:
        said = ngettext(
            "%(count)d of them would not come back by itself: %(names)s.",
            "%(count)d of them would not come back by themselves: %(names)s.",
            len(alone),
        )
        text.append(said % {"count": len(alone), "names": ", ".join(alone[:4])})
    text.append(_("Each move is tried again before it is made; where it cannot be made, the plan stops there."))
    body = dict(question)
    if step is not None:
        body["steps"] = [step]
    label = _("Confirm all moves…") if len(moves) > 1 else _("Confirm…")
    return Act(
        label=label,
        url=f"/api/v1/clusters/{cluster.name}/rebalances/",
        title=_("Carry this plan out?") if step is None else _("Make move %(step)d alone?") % {"step": step + 1},
        text=" ".join(text),
        confirm=_("Move them") if len(pods) > 1 else _("Move it"),
        body=body_of(body),
        etag=f'"{found.token}"',
        done=_("The plan is confirmed."),
        tone="bad",
    )


def _command(cluster: Cluster, question: dict[str, Any]) -> str:
    """Return the command that asks the same."""
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
        shown["stop"] = Act(
            label=_("Stop…"),
            url=f"/api/v1/clusters/{plan.cluster.name}/rebalances/{plan.pk}/actions/",
            title=_("Stop this plan?"),
            text=_("What was moved stays moved; no further move is made."),
            confirm=_("Stop the plan"),
            body='{"action":"stop"}',
            etag=plan_tag(plan),
            done=_("The plan is stopped."),
            tone="bad",
        )
    return shown
