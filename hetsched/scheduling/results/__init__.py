"""The results of a scheduling cycle, with their messages and explanations.

May import: the same as hetsched.scheduling.
"""
