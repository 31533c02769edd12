"""The kinds of objects that the informers watch, with their group and version.

`REQUIRED` kinds must be synced before any scheduling decision. `OPTIONAL` kinds need a CRD or a feature, or scheduling
can start without them. If an API server does not serve an optional kind or denies access to it, the sync does not wait
for this kind, and the informer retries every 30 seconds. After other failures, the sync waits for the kind for a few
attempts. For `RESTRICTIVE` kinds it waits until they are listed, because without them too many devices look usable.
"""

from __future__ import annotations

from .api import Resource

NODES = Resource("", "v1", "nodes", "Node")
PODS = Resource("", "v1", "pods", "Pod")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass")
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode")
TOPOLOGIES = Resource("topology.node.k8s.io", "v1alpha2", "noderesourcetopologies", "NodeResourceTopology")
CRANE_TOPOLOGIES = Resource("topology.crane.io", "v1alpha1", "noderesourcetopologies", "NodeResourceTopology")
NODE_GPUS = Resource("hetsched.io", "v1alpha1", "nodegpus", "NodeGpu")
NODE_USAGES = Resource("hetsched.io", "v1alpha1", "nodeusages", "NodeUsage")
SCHEDULING_POLICIES = Resource("hetsched.io", "v1alpha1", "schedulingpolicies", "SchedulingPolicy")
POD_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
# Built-in pod groups of Kubernetes: `spec.schedulingGroup` of a pod names a PodGroup and, in earlier versions,
# `spec.workloadRef` names a Workload. Each kind is read in the API versions that belong to its field: PodGroup in
# v1beta1 and v1alpha3 of Kubernetes 1.37 and in v1alpha2 of 1.36, Workload in v1alpha1 of 1.35.
NATIVE_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", older=("v1alpha3", "v1alpha2"))
NATIVE_WORKLOADS = Resource("scheduling.k8s.io", "v1alpha1", "workloads", "Workload")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
# Dynamic resource allocation: devices that drivers publish, and claims on them.
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice")
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass")
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
# Taints that administrators add to devices: stable in Kubernetes 1.37, beta in 1.36.
DEVICE_TAINT_RULES = Resource(
    "resource.k8s.io", "v1", "devicetaintrules", "DeviceTaintRule", older=("v1beta2", "v1alpha3")
)
QUOTAS = Resource("scheduling.x-k8s.io", "v1alpha1", "elasticquotas", "ElasticQuota")

REQUIRED = (
    NODES, PODS, NAMESPACES, PRIORITY_CLASSES, RUNTIME_CLASSES, BUDGETS, VOLUMES, CLAIMS, STORAGE_CLASSES, CSI_NODES,
)  # fmt: skip
OPTIONAL = (
    TOPOLOGIES, CRANE_TOPOLOGIES, NODE_GPUS, NODE_USAGES, SCHEDULING_POLICIES, POD_GROUPS, NATIVE_GROUPS,
    NATIVE_WORKLOADS, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, DEVICE_TAINT_RULES, QUOTAS,
)  # fmt: skip
RESTRICTIVE = (DEVICE_TAINT_RULES,)
# Kinds that describe a node and are joined to the node by name.
OF_NODES = (TOPOLOGIES, CRANE_TOPOLOGIES, NODE_GPUS, NODE_USAGES, CSI_NODES)
