"""NUMA zones and the kubelet's admission: topology-manager and CPU-manager models, zone demand and CPU grants."""
