"""Celery tasks: scheduling, binding, sweeps, the demo.

May import: hetsched.scheduling and below, hetsched.adapters, hetsched.engine, Celery.
Never: web, writing rows other than through the actions, arguments other than ids.
"""
