"""Lives here: collectors, one file each: what a node cannot know of itself, asked of systems that do.

May import: contracts, isa, engine and other adapters. Never: Django, Celery, the network other than by `asking`.
"""
