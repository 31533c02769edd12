"""Policies and their revisions: drafts, the active version, the policy of a pod; golden placements, plans.

May import: hetsched.inventory, hetsched.journal, hetsched.adapters, hetsched.lab, hetsched.contracts, hetsched.engine.
Never: deciding for submitted pods, which the workers and what-if do; golden placements run on empty nodes.
"""
