"""Celery tasks: the scheduling loop, binding, sweeps, the demo.

May import: hetsched.placement and below, hetsched.adapters, hetsched.engine, Celery.
Never: web, writing rows other than through the actions, arguments other than ids.
"""
