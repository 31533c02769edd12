"""Lives here: bugs that other schedulers had, each as a change of our code, and the test that must notice it.

May import: the standard library and pytest.
Never: the product; it is copied, changed and tested from outside.
"""
