"""hetsched places every workload of a mixed Kubernetes fleet on the node, cores and cards that suit it best.

Lives here: the floors of the product, from contracts (F0) to project wiring (F5);
docs/explanation/architecture.md draws them.
May import: nothing.
Never: logic of its own.
"""

__version__ = "0.1.0"
