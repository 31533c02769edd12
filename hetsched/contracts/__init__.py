"""Contracts: frozen types that cross a package border, and parsers of single values (quantities, CPU sets).

May import: the standard library and msgspec.
Never: another hetsched package, I/O beyond its own data table, clocks.
"""
