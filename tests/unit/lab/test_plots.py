"""Charts: well-formed, escaped, round scales, gaps, distinguishable without colour."""

import itertools
import re
from xml.etree import ElementTree

import pytest

from hetsched.lab.plots import PlotLine, bar_chart, line_chart, number_text, title_of


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]


def test_lines_are_labelled_at_their_ends_and_differ_in_dashes() -> None:
    series = [PlotLine("a", ((0, 0.0), (10, 1.0))), PlotLine("b", ((0, 0.5), (10, 0.9)))]
    svg = line_chart("title", series, x_label="pods", y_label="share")
    assert {"a", "b", "pods", "share"} <= set(texts(svg))
    assert svg.count("<polyline") == 2
    assert svg.count("stroke-dasharray") == 1


def test_wide_names_use_two_lines() -> None:
    # Eight bars share 684 px: 85.5 px each, enough for 12 letters of 7 px.
    names = ["short one", "a name that is long", *"cdefgh"]
    found = texts(bar_chart("t", [(name, 1.0) for name in names], y_label=""))
    assert "short one" in found
    assert found.index("a name that") + 1 == found.index("is long")


def test_chart_has_its_title() -> None:
    assert title_of(bar_chart("a < b", [("a", 1.0)], y_label="")) == "a &lt; b"


def test_missing_value_interrupts_the_line() -> None:
    svg = line_chart("t", [PlotLine("a", ((0, 1.0), (1, None), (2, 3.0)))], x_label="", y_label="")
    assert svg.count("<polyline") == 2


def test_empty_chart_has_a_message() -> None:
    assert "no values" in texts(line_chart("t", [PlotLine("a", ((0, None),))], x_label="", y_label=""))


def test_names_are_escaped() -> None:
    svg = line_chart("<t>", [PlotLine("a<b&c", ((0, 1.0),))], x_label="", y_label="")
    assert "a<b&c" in texts(svg)


def test_scales_end_on_round_numbers() -> None:
    svg = line_chart("t", [PlotLine("a", ((0, 0.0), (83, 0.47)))], x_label="", y_label="")
    assert {"0", "20", "100"} <= set(texts(svg))
    assert {"0.1", "0.5"} <= set(texts(svg))


def test_labels_of_lines_that_end_together_do_not_cover_each_other() -> None:
    series = [PlotLine(name, ((0, 0.0), (1, 1.0))) for name in "abc"]
    svg = line_chart("t", series, x_label="", y_label="")
    heights = [float(y) for y in re.findall(r'<text class="t\d" x="[\d.]+" y="([\d.]+)"', svg)]
    assert len(heights) == 3
    assert all(later - earlier >= 14 for earlier, later in itertools.pairwise(heights))


def test_bars_have_values_and_none_has_no_bar() -> None:
    svg = bar_chart("t", [("spread", 0.921), ("random", None)], y_label="share")
    assert {"0.921", "none", "spread", "random"} <= set(texts(svg))
    assert svg.count("<rect") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0"), (8152.0, "8,152"), (0.92803, "0.928"), (447.36, "447.4"), (-1.5, "-1.5")],
)
def test_numbers_have_the_digits_that_people_read(value: float | None, text: str) -> None:
    assert number_text(value) == text
