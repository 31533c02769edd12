"""Instant queries through the HTTP API of Prometheus and compatible servers (Thanos, Mimir, VictoriaMetrics).

A query is evaluated at the server's current time and returns one number for each set of labels; non-finite numbers are
dropped. A response may contain at most `MOST_SERIES` series.
Source: prometheus.io, HTTP API, instant queries.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

import msgspec

from hetsched.contracts.message import Message

from .collectors.requests import CollectorClient, SourceError

MOST_SERIES = 50_000
_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"([^"\\\n]|\\.)*"'
MATCHERS = re.compile(rf"({_MATCHER}(,{_MATCHER})*)?", re.ASCII)
"""The text allowed between the braces of a selector."""
PrometheusUrl = Annotated[
    str,
    msgspec.Meta(
        title="Address", description="URL of Prometheus, such as http://prometheus.monitoring:9090", max_length=500
    ),
]


class LabelledNumber(msgspec.Struct, frozen=True):
    """One number with its labels, evaluated at time `at` (seconds since 1970)."""

    labels: dict[str, str]
    at: float
    value: float


class _Result(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct):
    result_type: str = msgspec.field(name="resultType")
    result: list[_Result] = []


class _QueryResponse(msgspec.Struct):
    status: str
    data: _Data | None = None


def query(ask: CollectorClient, url: str, text: str) -> list[LabelledNumber]:
    """Evaluate a query now; `url` is the server's base URL, including a path prefix. Raises: SourceError."""
    document: Any = ask.json(f"{url.rstrip('/')}/api/v1/query", {"query": text, "timeout": "4s"})
    try:
        answer = msgspec.convert(document, _QueryResponse)
    except (msgspec.ValidationError, RecursionError):
        raise SourceError("AnswerNotPrometheus", "the response is not from the Prometheus query API") from None
    if answer.status != "success" or answer.data is None or answer.data.result_type != "vector":
        raise SourceError("AnswerNotPrometheus", "the result of the query is not a vector")
    if len(answer.data.result) > MOST_SERIES:
        raise SourceError("AnswerTooLarge", Message("the query returns more than {n} series", n=MOST_SERIES))
    found = [LabelledNumber(one.metric, one.value[0], _number(one.value[1])) for one in answer.data.result]
    return [number for number in found if math.isfinite(number.value) and math.isfinite(number.at)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
