"""Device plugin of one resource: the gRPC methods that the kubelet calls.

Each container must get GPUs that were granted to its pod, and no others. `Allocate` finds the pod (`pod_selection`)
among the verified grants, records the assignment, and responds with the granted GPUs, regardless of the requested
slots. If no grant matches, or the grants of several pods match, `Allocate` first requests the newest grants from the
control plane, for at most `patience_seconds`. If there is still no matching grant, `Allocate` rejects the request and
the kubelet fails the pod. The response to `GetPreferredAllocation` lists slots of the granted GPUs where possible, so
that the kubelet requests them.
The response passes NVIDIA GPUs by CDI name, by the variable of NVIDIA's container runtime, or as bare device nodes, and
AMD GPUs as device nodes. Only CDI isolates containers: a pod's own variables override those of the plugin. Shares of
GPUs are enforced only by HAMi-core in the container, which reads the memory limit (MiB per GPU) and the core limit
(percent, for all GPUs) from variables.
Source: kubernetes/kubelet, deviceplugin/v1beta1; kubelet's devicemanager (admits one pod at a time); NVIDIA container
toolkit; AMD k8s-device-plugin; HAMi-core.
Invariant: an assignment is recorded before it is returned.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import grpc

from hetsched.contracts.objects.allocation import CardGrant

from ..rpc import device_plugin_pb2 as api
from .assignments import AssignmentRecord
from .pod_selection import PodGrant, PodSelection, choose
from .slots import Card, Slot, slots_of

CARDS = "hetsched.io/cards"
_WHOLE_MILLI = 1000
_NVIDIA_COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_LIBRARY = "/usr/local/vgpu/libvgpu.so"
_PRELOAD = "/etc/ld.so.preload"
AssignedShares = Sequence[tuple[Card, CardGrant]]


def answer(given: AssignedShares, way: str, slicing_directory: str = "") -> api.ContainerAllocateResponse:
    """Return the Allocate response for a container with these GPUs; `way` (cdi, env, nodes) applies to NVIDIA GPUs."""
    response = api.ContainerAllocateResponse()
    # For debugging, the annotation shows the assigned GPUs in the container runtime.
    response.annotations[CARDS] = ",".join(f"{card.id}:{share.milli}" for card, share in given)
    if all(card.vendor == "amd" for card, _ in given):
        _nodes(response, ("/dev/kfd", *(f"/dev/dri/renderD{card.minor}" for card, _ in given)))
    elif way == "cdi":
        for card, _ in given:
            response.cdi_devices.add(name=f"nvidia.com/gpu={card.id}")
        # without this, the hook of NVIDIA's runtime adds the GPUs that the image requests
        response.envs["NVIDIA_VISIBLE_DEVICES"] = "void"
    elif way == "nodes":
        _nodes(response, (*(f"/dev/nvidia{card.minor}" for card, _ in given), *_NVIDIA_COMMON))
    else:
        response.envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(card.id for card, _ in given)
    if slicing_directory and any(card.vendor == "nvidia" for card, _ in given):
        _limits(response, given, slicing_directory)
    return response


def _nodes(response: api.ContainerAllocateResponse, paths: Sequence[str]) -> None:
    for path in paths:
        response.devices.add(container_path=path, host_path=path, permissions="rw")


def _limits(response: api.ContainerAllocateResponse, given: AssignedShares, directory: str) -> None:
    if all(share.milli >= _WHOLE_MILLI for _, share in given):
        return
    for place, (_, share) in enumerate(given):
        if share.memory_mib:
            response.envs[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"] = f"{share.memory_mib}m"
    percent = min(share.milli for _, share in given) // 10
    response.envs["CUDA_DEVICE_SM_LIMIT"] = str(max(percent, 1))
    response.mounts.add(container_path=_LIBRARY, host_path=f"{directory}/libvgpu.so", read_only=True)
    response.mounts.add(container_path=_PRELOAD, host_path=f"{directory}/ld.so.preload", read_only=True)


PATIENCE_SECONDS = 8.0
_FIRST_PAUSE_SECONDS = 0.1
_POLL_SECONDS = 1.0


class GrantSource(Protocol):
    """Verified grants of this node's pods, in the order of their arrival."""

    def grants(self) -> Sequence[PodGrant]: ...

    def refresh(self, seconds: float) -> None:
        """Request the newest grants from the control plane, for at most `seconds`."""


# Returns the slots that containers hold now, or None if the kubelet does not report them.
InUse = Callable[[], Collection[str] | None]


class CardPlugin:
    """Device plugin for the GPUs of one vendor under one resource name."""

    def __init__(
        self,
        resource: str,
        source: GrantSource,
        handed: AssignmentRecord,
        *,
        in_use: InUse = lambda: None,
        slots: int = 1,
        way: str = "env",
        slicing_directory: str = "",
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.resource = resource
        self.handed = handed
        self._source = source
        self._in_use = in_use
        self._slots_each = slots
        self._way, self._slicing_directory = way, slicing_directory
        self._patience_seconds = patience_seconds
        self._cards: dict[str, Card] = {}
        self._slots: tuple[Slot, ...] = ()
        self._changed = threading.Condition()
        self._version = 0
        self._one_at_a_time = threading.Lock()
        self.stopped = False

    def set_cards(self, cards: Sequence[Card]) -> None:
        """Set the GPUs that are present; a change is reported to the kubelet."""
        with self._changed:
            if {card.id: card for card in cards} != self._cards or self._version == 0:
                self._cards = {card.id: card for card in cards}
                self._slots = slots_of(cards, self._slots_each)
                self._version += 1
                self._changed.notify_all()

    def stop(self) -> None:
        """End the ListAndWatch calls of the kubelet."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def actual(
        self, devices: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]
    ) -> dict[str, dict[str, dict[str, tuple[str, ...]]]]:
        """Return the devices of containers with GPUs in place of this resource's slots."""
        return {
            uid: {
                container: {
                    name: self.handed.resolve_slots(ids) if name == self.resource else tuple(ids)
                    for name, ids in given.items()
                }
                for container, given in containers.items()
            }
            for uid, containers in devices.items()
        }

    # -- methods called by the kubelet
    # ------------------------------------------------------------------------------------

    def options(self, _request: Any = None, _context: Any = None) -> api.DevicePluginOptions:
        return api.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)

    def list_and_watch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]:
        """Send all slots, and send them again whenever a GPU appears, disappears or changes its health."""
        sent_version = 0
        while True:
            with self._changed:
                while self._version == sent_version and not self.stopped and context.is_active():
                    self._changed.wait(_POLL_SECONDS)
                if self.stopped or not context.is_active():
                    return
                sent_version, slots = self._version, self._slots
            yield api.ListAndWatchResponse(devices=[_device(slot) for slot in slots])

    def preferred(
        self, request: api.PreferredAllocationRequest, _context: Any = None
    ) -> api.PreferredAllocationResponse:
        """Return free slots of the GPUs granted to the pod, then other free slots."""
        response = api.PreferredAllocationResponse()
        with self._one_at_a_time:
            for wanted in request.container_requests:
                must, count = list(wanted.must_include_deviceIDs), wanted.allocation_size
                pool = [slot for slot in wanted.available_deviceIDs if slot not in must]
                found = self._choose([*must, *[""] * (count - len(must))])
                cards = [card.id for card, _ in found.cards] if found is not None else []
                card_behind = {slot.id: slot.card.id for slot in self._slots}
                best: list[str] = list(must)
                for card in cards:
                    free = (slot for slot in pool if card_behind.get(slot) == card and slot not in best)
                    best += [slot for slot in [next(free, None)] if slot is not None]
                best += [slot for slot in pool if slot not in best]
                response.container_responses.add(deviceIDs=best[:count])
        return response

    def allocate(self, request: api.AllocateRequest, context: grpc.ServicerContext) -> api.AllocateResponse:
        """Assign each container the GPUs of its pod's grant, or reject the pod."""
        response = api.AllocateResponse()
        with self._one_at_a_time:
            for wanted in request.container_requests:
                slots = list(wanted.devices_ids)
                given = self._find_pod(slots) if slots else None
                if given is None:
                    context.abort(
                        grpc.StatusCode.FAILED_PRECONDITION,
                        f"no pending pod of this node has a control-plane grant for {len(slots)} {self.resource}",
                    )
                assert given is not None  # `context.abort` has raised otherwise
                pairs = list(zip(slots, given.cards, strict=True))
                try:
                    self.handed.add(
                        given.uid,
                        {slot: card.id for slot, (card, _) in pairs},
                        {slot: share.milli for slot, (_, share) in pairs},
                    )
                except OSError as error:
                    context.abort(grpc.StatusCode.UNAVAILABLE, f"the device allocation cannot be saved: {error}")
                response.container_responses.append(answer(given.cards, self._way, self._slicing_directory))
        return response

    def pre_start(self, _request: Any, _context: Any) -> api.PreStartContainerResponse:
        return api.PreStartContainerResponse()

    def _find_pod(self, slots: Sequence[str]) -> PodSelection | None:
        """Find the pod for these slots.

        If no pod matches, newer grants are requested until one does. If several pods match, newer grants are requested
        once.
        """
        until = time.monotonic() + self._patience_seconds
        found, pause = self._choose(slots), _FIRST_PAUSE_SECONDS
        if found is not None and found.sure:
            return found
        while (remaining := until - time.monotonic()) > 0:
            self._source.refresh(remaining)
            found = self._choose(slots)
            if found is not None:
                break
            time.sleep(min(pause, max(until - time.monotonic(), 0)))
            pause = min(2 * pause, _POLL_SECONDS)
        return found

    def _choose(self, slots: Sequence[str]) -> PodSelection | None:
        vendor = self.resource.split(".", 1)[0]
        grants = self._source.grants()
        self.handed.settle(self._in_use(), {grant.uid for grant in grants})
        mine = [grant for grant in grants if all(self._matches(share, vendor) for share in grant.cards)]
        return choose(slots, mine, self.handed.entries, self._cards)

    def _matches(self, share: CardGrant, vendor: str) -> bool:
        """Return whether the GPU of a share, identified by UUID or index, is of this resource's vendor."""
        if share.uuid:
            return share.uuid in self._cards
        return any(card.index == share.index and card.vendor == vendor for card in self._cards.values())


def _device(slot: Slot) -> api.Device:
    device = api.Device(ID=slot.id, health="Healthy" if slot.card.healthy else "Unhealthy")
    if slot.card.zone is not None:
        device.topology.nodes.add(ID=slot.card.zone)
    return device
