"""The scheduling queue: active and backed-off pods, unschedulable pods, back-off from nodes, decision time."""
