"""Collectors, one per file: facts about nodes from external systems that the node itself cannot know.

May import: contracts, isa, engine and other adapters. Never: Django, Celery, the network other than by `requests`.
"""
