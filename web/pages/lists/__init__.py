"""Shared parts of all lists: filter expressions, columns, order, pages, and CSV and JSON export.

May import: the engine's contracts and ISA lattice, Django; nothing of a single list.
Never: a query of its own, a write.
"""
