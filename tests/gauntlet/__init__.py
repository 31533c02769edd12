"""Bugs of other schedulers, each seeded into a copy of this code, with the test that must detect it.

May import: the standard library and pytest. The product is copied, changed and run in other processes, but never
imported.
"""
