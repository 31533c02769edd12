"""Access control: roles, tokens, the subject of a request, login.

May import: hetsched.journal, hetsched.contracts.
Must not implement actions: a role names actions, and the apps implement them.
"""
