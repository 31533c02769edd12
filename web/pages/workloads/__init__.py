"""Pages of workloads: lists, explanations, decisions, the queue and holds."""
