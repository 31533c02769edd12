"""Contracts: frozen types that are shared between packages, and parsers of single values (quantities, CPU sets).

May import: the standard library and msgspec.
Must not use: other hetsched packages, clocks, or I/O other than reading the table of accelerators.
"""
