"""The scheduler: informers, scheduling loop and cycle, binding cycle, leader election, the extender.

The scheduler cache and the scheduling queue are in `placement` (`scheduler_cache`, `scheduling_queue`), because web
pages read them too.
May import: hetsched.placement and below, hetsched.adapters, hetsched.engine.
Must not contain: web code, Celery tasks, writes to rows other than through the actions.
"""
