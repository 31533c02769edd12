"""Migrations match the models."""

from __future__ import annotations

import pytest
from django.core.management import call_command


@pytest.mark.django_db
def test_no_model_changed_without_a_migration() -> None:
    call_command("makemigrations", "--check", "--dry-run", "journal", "inventory", "policies", "placement", verbosity=0)
