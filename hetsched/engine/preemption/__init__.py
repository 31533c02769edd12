"""Preemption: the victims on each node and the choice between nodes."""
