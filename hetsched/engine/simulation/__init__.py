"""Simulations on a copy of the cluster state: what-if, headroom, moves, advice and golden placements."""
