"""Fixtures of the command tests."""

from tests.unit.cli.answering import server

__all__ = ["server"]
