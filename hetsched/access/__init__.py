"""Access control: roles, tokens, the subject of a request, login.

May import: hetsched.journal, hetsched.contracts.
Never: the implementation of actions; a role names actions, the apps implement them.
"""
