"""Results of CEL selectors for the devices of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from hetsched.contracts.objects.devices import Device, ResourceClaim, SelectorVerdict

from ..cel_selectors import Answer, expression, version
from .slices import qualified

Plain = dict[str, Any]


def selector_verdicts(
    devices: Sequence[Device], classes: dict[str, tuple[str, ...]], claims: Iterable[ResourceClaim]
) -> dict[str, SelectorVerdict]:
    """Return the results of each requested selector for its candidate devices."""
    chains = selector_chains(classes, claims)
    texts = [_text_of(device) for device in devices] if chains else []
    answers: dict[str, dict[int, Answer]] = {}
    for chain in sorted(chains):
        left: Iterable[int] = range(len(devices))
        for selector in chain:
            known = answers.setdefault(selector, {})
            for place in left:
                if place not in known:
                    known[place] = _answer(selector, texts[place])
            left = [place for place in left if known[place][0]]
    return {selector: _verdict(known) for selector, known in answers.items()}


def selector_chains(classes: dict[str, tuple[str, ...]], claims: Iterable[ResourceClaim]) -> set[tuple[str, ...]]:
    """Return the selectors of each request in the order of their evaluation, those of its class first.

    A class can be requested without a claim, as an extended resource.
    """
    # Claims of one template have equal requests.
    wishes = dict.fromkeys(wish for claim in claims for request in claim.requests for wish in request.wishes)
    return {(*classes.get(wish.device_class, ()), *wish.selectors) for wish in wishes} | {*classes.values()}


def evaluate(selector: str, device: Device) -> bool | None:
    """Return the result of a selector for a device, or None if it cannot be evaluated."""
    return _answer(selector, _text_of(device))[0]


def is_supported(selector: str) -> bool:
    """Return whether a selector can be evaluated for devices that have the attributes which it reads."""
    return not expression(selector).problem


def _verdict(known: dict[int, Answer]) -> SelectorVerdict:
    true = tuple(place for place, (answer, _) in known.items() if answer)
    unknown = tuple(place for place, (answer, _) in known.items() if answer is None)
    return SelectorVerdict(true, unknown, known[unknown[0]][1] if unknown else "")


@lru_cache(maxsize=200_000)
def _answer(selector: str, facts: str) -> Answer:
    return expression(selector).evaluate(json.loads(facts))


def _text_of(device: Device) -> str:
    return json.dumps(_plain_of(device), sort_keys=True)


def _plain_of(device: Device) -> Plain:
    """Return a device as CEL expressions read it: attributes and capacity by domain and name."""
    attributes: dict[str, Plain] = {}
    for key, value in device.attributes.items():
        domain, _, name = key.rpartition("/")
        attributes.setdefault(domain, {})[name] = version(str(value)) if key in device.versions else value
    capacity: dict[str, Plain] = {}
    for key, found in device.capacity.items():
        domain, name = qualified(key, device.id.driver)
        capacity.setdefault(domain, {})[name] = found.value
    return {
        "driver": device.id.driver,
        "attributes": attributes,
        "capacity": capacity,
        "allowMultipleAllocations": device.shared,
    }
