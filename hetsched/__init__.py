"""Scheduling control plane for non-uniform Kubernetes fleets.

Sub-packages are the floors of the product, from contracts (F0) to project wiring (F5), as drawn in
docs/explanation/architecture.md.
May import: nothing.
Never: logic of its own.
"""

__version__ = "0.1.0"
