"""Collectors of facts about nodes that only external systems know, one collector per file.

May import: contracts, isa, engine and other adapters. Network access only through module `requests` of this
package. Never: Django, Celery.
"""
