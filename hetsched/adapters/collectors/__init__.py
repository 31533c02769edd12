"""Collectors of facts about nodes that only external systems know, one collector per file.

May import: contracts, isa, engine and other adapters. Never: Django, Celery, the network other than by `requests`.
"""
