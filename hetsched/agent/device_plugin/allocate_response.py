"""Allocate response of a container with GPUs: environment variables, device nodes, mounts, CDI names.

NVIDIA GPUs are passed by CDI name, by the variable of NVIDIA's container runtime, or as bare device nodes; AMD GPUs as
device nodes. A pod's own variables come after ours and may override them, and every CUDA image requests all GPUs in
one: if that matters, use CDI, because the kernel then isolates the container from other GPUs. A share is limited if a
slicing runtime is installed: memory in MiB by GPU, cores in percent for all of them, both read by HAMi-core in the
container.
Source: NVIDIA container toolkit (variables, CDI names), AMD k8s-device-plugin (device nodes), HAMi-core (variables).
"""

from __future__ import annotations

from collections.abc import Sequence

from hetsched.contracts.objects.allocation import CardGrant

from ..rpc import device_plugin_pb2 as api
from .slots import Card

CARDS = "hetsched.io/cards"
_WHOLE_MILLI = 1000
_NVIDIA_COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_LIBRARY = "/usr/local/vgpu/libvgpu.so"
_PRELOAD = "/etc/ld.so.preload"
Given = Sequence[tuple[Card, CardGrant]]


def answer(given: Given, way: str, slicing_directory: str = "") -> api.ContainerAllocateResponse:
    """Return the kubelet's Allocate response for a container with these GPUs."""
    response = api.ContainerAllocateResponse()
    # The annotation shows the assigned GPUs in the runtime, for debugging.
    response.annotations[CARDS] = ",".join(f"{card.id}:{share.milli}" for card, share in given)
    if all(card.vendor == "amd" for card, _ in given):
        _nodes(response, ("/dev/kfd", *(f"/dev/dri/renderD{card.minor}" for card, _ in given)))
    elif way == "cdi":
        for card, _ in given:
            response.cdi_devices.add(name=f"nvidia.com/gpu={card.id}")
        # otherwise the runtime's hook would add the GPUs that an image requests
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


def _limits(response: api.ContainerAllocateResponse, given: Given, directory: str) -> None:
    if all(share.milli >= _WHOLE_MILLI for _, share in given):
        return
    for place, (_, share) in enumerate(given):
        if share.memory_mib:
            response.envs[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"] = f"{share.memory_mib}m"
    percent = min(share.milli for _, share in given) // 10
    response.envs["CUDA_DEVICE_SM_LIMIT"] = str(max(percent, 1))
    response.mounts.add(container_path=_LIBRARY, host_path=f"{directory}/libvgpu.so", read_only=True)
    response.mounts.add(container_path=_PRELOAD, host_path=f"{directory}/ld.so.preload", read_only=True)
