"""Code shared by all lists: filter expressions, columns, order, pages, and CSV and JSON export.

May import: the engine's contracts and ISA lattice, and Django, but not the module of a list.
Never: run queries other than those of the list, or write.
"""
