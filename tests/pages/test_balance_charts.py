"""The charts of the balance page: dots by CPU and memory, and the line of recorded values."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hetsched.inventory.models import Cluster
from hetsched.policies.models import Measure
from hetsched.policies.plan_contracts import Measured
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed
from web.pages.clusters.balance import HEIGHT, WIDTH, dots, trend


def a_row(name: str, cpu: float | None, memory: float | None) -> dict[str, Any]:
    return {"name": name, "degree": 0.9, "cells": [(cpu, "-"), (memory, "-"), (None, "-"), (None, "-")]}


def took(cluster: Cluster, minutes: int, balance: float) -> None:
    at = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=minutes)
    figures = Measured(0.0, 0.0, 0.0, balance, 0.0)
    Measure.objects.create(cluster=cluster, at=at, figures=figures)


def test_dot_is_positioned_by_cpu_and_memory() -> None:
    # 25 % of CPU from the left, 60 % of memory from below: 100 - 60 = 40 from above
    (dot,) = dots([a_row("n1", 0.25, 0.6), a_row("unknown", None, 0.5)])
    assert (dot.name, dot.x, dot.y) == ("n1", 25.0, 40.0)


def test_overlapping_dots_show_at_most_three_names() -> None:
    # Five at one place: the first name is next to its dot, the next a line above, the third a line below.
    heights = [dot.name_y for dot in dots([a_row(f"n{number}", 0.5, 0.5) for number in range(5)])]
    assert heights == [50, 46, 54, None, None]
    # Far from each other, each has its own height.
    apart = dots([a_row("left", 0.1, 0.5), a_row("right", 0.9, 0.5)])
    assert [dot.name_y for dot in apart] == [50, 50]


@pytest.mark.django_db
def test_line_starts_at_the_oldest_value(cluster: Cluster) -> None:
    assert trend(cluster, timezone.now()) is None
    for minutes, balance in ((20, 1.0), (10, 0.875), (0, 0.75), (60 * 25, 0.1)):
        took(cluster, minutes, balance)
    found = trend(cluster, timezone.now())
    assert found is not None
    # values older than a day are left out; from 0.75 to 1, 0.875 is half-way
    assert found.low == 0.75
    assert found.line == f"0.0,0.0 {WIDTH / 2:.1f},{HEIGHT / 2:.1f} {WIDTH:.1f},{HEIGHT:.1f}"


@pytest.mark.django_db
def test_page_has_one_dot_per_node_and_a_text_alternative(viewer: Client) -> None:
    a_cluster(a_node("n1"), a_node("n2"), running=(a_pod("r").cpu(2).running_on("n1"),))
    page = viewer.get("/balance/").content.decode()
    assert len(re.findall(r'<circle cx="[0-9.]+" cy="[0-9.]+" r="1.3"', page)) == 2
    assert "<title>n1: CPU 25 %" in page
    assert "The chart needs at least two samples." in page


def test_charts_show_their_first_and_last_time(viewer: Client, cluster: Cluster) -> None:
    took(cluster, 20, 1.0)
    took(cluster, 5, 0.9)
    placed(cluster, "n1", a_pod("p"))
    for address, charts in (("/balance/", 1), ("/nodes/n1/balance/", 2)):
        page = viewer.get(address).content.decode()
        axes = re.findall(r'class="time-axis[^>]*><time datetime="([^"]+)">[^<]*</time><time datetime="([^"]+)"', page)
        assert len(axes) == charts, address
        assert all(first < last for first, last in axes)
    at = [measure.at.isoformat() for measure in Measure.objects.order_by("at")]
    assert f'<time datetime="{at[0]}">' in viewer.get("/balance/").content.decode().partition("time-axis")[2]
