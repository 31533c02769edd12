"""Entry points of users and programs: REST (`api`), live updates (`live`), pages (`pages`).

May import: the apps below (journal, access, inventory, policies, placement) and the layers below them.
Never: make scheduling decisions, write rows directly, or wait for the engine except in a what-if.
"""
