"""The scheduling queue: active, backoff and unschedulable pods, back-off from nodes, decision time."""
