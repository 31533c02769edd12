"""Messages of scheduling results: the placement of a pod, and reasons why it may fail to run there."""

from __future__ import annotations

from typing import Any

from hetsched.contracts.api.decision import PREEMPTION_SOURCE, Reason
from hetsched.contracts.message import Message, format_pods, joined
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.diagnosis import Diagnosis
from hetsched.engine.framework.outcome import Outcome

from ..force_deleted import HELD

_POSSIBLE = "the pod would fit on {node} without {pods}, but hetsched does not evict pods on this cluster"


def held_by(diagnosis: Diagnosis) -> tuple[Message, ...]:
    """Return the part of a summary that names the blocking force-deleted pods, or an empty part if there are none."""
    held = any(reason.code == HELD for reason in diagnosis.reasons)
    return (tuple(diagnosis.summary.params)[-1],) if held else ()


def possible_preemption(outcome: Outcome) -> tuple[Reason, ...]:
    """Return a reason that names the pods that could be preempted, for clusters without preemption by the scheduler."""
    if outcome.eviction is None or not outcome.eviction.victims:
        return ()
    message = Message(_POSSIBLE, node=outcome.eviction.node, pods=format_pods(outcome.eviction.victims))
    return (Reason("PreemptionPossible", PREEMPTION_SOURCE, 1, message),)


def placement_summary(pod: str, outcome: Outcome, score: str) -> Message:
    """Return a message with the node and the GPUs of a placed pod and the pods that it preempted."""
    where: dict[str, Any] = {"pod": pod, "node": outcome.node, "score": score}
    cards: Any = outcome.allocation.gpus
    if not cards:
        message = Message("{pod} placed on {node}, score {score}", **where)
    elif cards[0].milli < 1000:
        template = "{pod} placed on {node} with {n}/1000 of GPU {card}, score {score}"
        message = Message(template, n=cards[0].milli, card=cards[0].index, **where)
    elif cards[1:]:
        names = joined(", ", [card.index for card in cards])
        message = Message("{pod} placed on {node} with GPUs {names}, score {score}", names=names, **where)
    else:
        message = Message("{pod} placed on {node} with GPU {card}, score {score}", card=cards[0].index, **where)
    victims = [placed.pod.key for placed in outcome.evicted]
    return Message("{detail}, replacing {pods}", detail=message, pods=format_pods(victims, 1)) if victims else message


def unknown_images(pod: PodSpec) -> tuple[Message, ...]:
    """Return a warning that a placed pod may not run because the platforms of its images are unknown."""
    unknown = [facts for facts in pod.image_facts if facts.unknown]
    if not unknown:
        return ()
    first = unknown[0]
    if unknown[1:]:
        template = "the platforms of {image} and {n} more images are unknown: {detail}"
        return (Message(template, image=first.image, n=len(unknown) - 1, detail=first.unknown),)
    return (Message("the platforms of {image} are unknown: {detail}", image=first.image, detail=first.unknown),)


def image_warnings(outcome: Outcome) -> tuple[Message, ...]:
    """Return warnings about images that the node's container runtime may reject."""
    isa = outcome.allocation.isa
    return isa.warnings or () if isa is not None else ()
