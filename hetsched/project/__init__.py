"""Django project: settings, routes, ASGI, Celery, checks and the setup commands.

May import: all packages; apps and views are referenced as strings.
Must not contain: scheduling logic.
"""
