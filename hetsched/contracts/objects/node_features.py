"""Features of kubelets that a pod can require and that nodes declare in `status.declaredFeatures`.

Source: k8s.io/component-helpers 0.37.2, `nodedeclaredfeatures/features`: all features with a requirement of pods that
are scheduled. Nodes declare further features, which matter only for changes of running pods.
"""

RESTART_ALL_CONTAINERS = "RestartAllContainersOnContainerExits"
USER_NAMESPACES_HOST_NETWORK = "UserNamespacesHostNetworkSupport"
VOLUME_BIND_MOUNT_OPTIONS = "VolumeBindMountOptions"
# Each feature, and the field of a pod's spec that requires it.
REQUIRED_BY = {
    RESTART_ALL_CONTAINERS: "spec.containers.restartPolicyRules",
    USER_NAMESPACES_HOST_NETWORK: "spec.hostUsers",
    VOLUME_BIND_MOUNT_OPTIONS: "spec.containers.volumeMounts.bindMountOptions",
}
