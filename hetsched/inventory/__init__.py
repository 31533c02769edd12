"""Lives here: what the fleet consists of: clusters, nodes and every fact a node reported.

May import: hetsched.journal, hetsched.contracts, hetsched.isa, hetsched.engine.
Never: pods and decisions; the apps above learn of a change by the signal in `signals.py`.
"""
