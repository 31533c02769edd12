"""Lives here: what every list shares: filter expressions, columns, order, pages, and the view as CSV or JSON.

May import: the engine's contracts and ISA lattice, Django; nothing of a single list.
Never: a query of its own, a write.
"""
