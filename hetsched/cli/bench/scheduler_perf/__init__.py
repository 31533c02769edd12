"""Workloads of Kubernetes' scheduler_perf on hetsched and kube-scheduler: configurations, operations, results."""
