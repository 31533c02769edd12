"""Mutation check: single random changes of the product's functions, and the share of them that the tests notice.

May import: the standard library and pytest. The product is read and changed from outside: `run` also checks the working
tree of another commit, with the packages of that commit.
"""
