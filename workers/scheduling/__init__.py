"""Decisions on a snapshot, and the process that follows live clusters: informers, leader election, binding."""
