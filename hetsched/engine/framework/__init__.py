"""The scheduling framework: extension points, registry, policies, the scheduling cycle, scoring, preemption."""
