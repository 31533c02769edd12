"""Entry points of users and programs: REST (`api`), live updates (`live`), pages (`pages`).

May import: the apps below (journal, access, inventory, policies, placement) and the floors under them.
Never: decide, write a row by itself, or wait for the engine except in a what-if.
"""
