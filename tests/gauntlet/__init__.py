"""Bugs of other schedulers, each as a change of this code, with the test that must fail on it.

May import: the standard library and pytest.
Never: the product; it is copied, changed and tested from outside.
"""
