"""Django project: settings, routes, ASGI, Celery, checks and the set-up commands.

May import: everything below by name; apps and views are named as strings.
Never: scheduling logic.
"""
