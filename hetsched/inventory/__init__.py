"""The fleet: clusters, nodes and every reported fact of a node.

May import: hetsched.journal, hetsched.contracts, hetsched.isa, hetsched.engine.
Never: pods and decisions; the apps above learn of a change by the signal in `signals.py`.
"""
