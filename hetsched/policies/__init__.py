"""Policies, their revisions and active versions, the choice of a pod's policy, golden placements and plans.

May import: hetsched.inventory, hetsched.journal, hetsched.adapters, hetsched.lab, hetsched.contracts, hetsched.engine.
Must not schedule submitted pods; only the workers and what-if requests do. Golden placements are checked on empty
nodes.
"""
