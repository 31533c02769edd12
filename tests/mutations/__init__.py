"""Mutation check: apply single random changes to the product's functions, and compute the share that the tests detect.

May import: the standard library and pytest. The product is read and changed but not imported: `run` also checks the
working tree of another commit, with the packages of that commit.
"""
