"""Lives here: policies and their revisions: drafts, what is active, which policy a pod gets; golden placements, plans.

May import: hetsched.inventory, hetsched.journal, hetsched.adapters, hetsched.lab, hetsched.contracts, hetsched.engine.
Never: deciding for pods that are there, the workers and what-if do that; golden placements run on empty nodes.
"""
