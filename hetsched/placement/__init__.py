"""Workloads, pods, decisions and reservations, and the actions that are their only writers.

May import: hetsched.policies, hetsched.inventory, hetsched.journal, hetsched.engine, hetsched.adapters,
hetsched.contracts.
Must not contain: rendering, task bodies, calls to an external system inside a transaction.
"""
