"""Charts are valid SVG and show the samples."""

from __future__ import annotations

from xml.etree import ElementTree

from endurance.chart import Line, Panel, chart

SVG = "{http://www.w3.org/2000/svg}"


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right() -> None:
    panels = [Panel("Growth", [Line("a", [0, 1, 4]), Line("b", [4, 4, 4])])]
    root = ElementTree.fromstring(chart([0, 10, 20], panels))
    rising, level = (
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in root.iter(f"{SVG}polyline")
    )
    assert [x for x, _ in rising] == [x for x, _ in level]
    assert rising[1][0] - rising[0][0] == rising[2][0] - rising[1][0]
    heights = [rising[0][1] - y for _, y in rising]
    assert heights[1] * 4 == heights[2] > 0  # a picture's y grows downwards
    assert rising[2][1] == level[0][1] == level[2][1]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"Growth", "a", "b", "0 min", "5 min", "20 min"} <= set(texts)
