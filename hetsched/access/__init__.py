"""Lives here: who may do what: roles, tokens, the subject of a request, login.

May import: hetsched.journal, hetsched.contracts.
Never: what the actions do; a role names actions, the apps carry them out.
"""
