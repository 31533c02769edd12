"""NUMA nodes of devices, read from the attributes that their drivers publish.

The standard attribute exists since Kubernetes 1.37; before, each driver chose a name in its own domain:
    resource.kubernetes.io/numaNode          standard; dra-driver-cpu, dra-driver-memory, SR-IOV
    dra.cpu/numaNodeID, dra.cpu/numaNode     dra-driver-cpu
    dra.memory/numaNode                      dra-driver-memory
    dra.net/numaNode                         dranet, SR-IOV
    gpu.amd.com/numaNode                     AMD GPU
    gpu.nvidia.com/numa, numaNode            NVIDIA GPU (`numa` for VFIO devices only)
Any attribute with one of these names is read, whatever its domain: the standard one first, then that of the driver's
domain, then the others by name. A device without such an attribute is near the NUMA node of the other devices of its
PCIe root complex on the same node, if they agree. A negative number means that the device is near no NUMA node.
Source: k8s.io/dynamic-resource-allocation `deviceattribute`; KEP-6072; the named drivers.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetsched.contracts.objects.devices import Device

STANDARD = "resource.kubernetes.io/numaNode"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
_NAMES = frozenset({"numa", "numanode", "numanodeid", "numaid"})


def numa_nodes(devices: Sequence[Device]) -> list[int | None]:
    """Return the number of the NUMA node near each device, or None if it is unknown or the device is near none."""
    stated = [_stated(device) for device in devices]
    by_root: dict[tuple[str, object], set[int]] = {}
    for device, number in zip(devices, stated, strict=True):
        if number is not None and PCIE_ROOT in device.attributes:
            by_root.setdefault((device.node, device.attributes[PCIE_ROOT]), set()).add(number)
    return [
        _only(by_root.get((device.node, device.attributes.get(PCIE_ROOT)))) if number is None else number
        for device, number in zip(devices, stated, strict=True)
    ]


def _stated(device: Device) -> int | None:
    if not device.node:  # a device that several nodes can access is near no NUMA node of them
        return None
    found = [name for name in device.attributes if _bare(name) in _NAMES]
    found.sort(key=lambda name: (name != STANDARD, not name.startswith(f"{device.id.driver}/"), name))
    numbers = (device.attributes[name] for name in found)
    return next((number for number in numbers if type(number) is int and number >= 0), None)


def _bare(name: str) -> str:
    return name.rpartition("/")[2].replace("-", "").replace("_", "").lower()


def _only(numbers: set[int] | None) -> int | None:
    return next(iter(numbers)) if numbers is not None and len(numbers) == 1 else None
