"""Bugs of other schedulers, each seeded into a copy of this code, with the test that must fail on it.

May import: the standard library and pytest. The product is copied, changed and tested from outside, and never imported.
"""
