"""Celery tasks: scheduling, binding, sweeps and the demo.

May import: hetsched.scheduling and below, hetsched.adapters, hetsched.engine, Celery.
Never: import web, write rows except through the actions, or take arguments other than ids.
"""
