"""Traces and simulated fleets: the openb trace, its published results, and the demo's fleet and stream."""
