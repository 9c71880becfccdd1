from __future__ import annotations

from xml.etree import ElementTree

from demo_picture import picture
from rich.text import Text

SVG = "{http://www.w3.org/2000/svg}"


def test_each_frame_is_a_group_and_the_last_one_stays_where_nothing_may_move() -> None:
    drawn = picture([Text("calm"), Text("pressure <95 %>"), Text("PASS")])
    frames = [group for group in ElementTree.fromstring(drawn).iter(f"{SVG}g") if group.get("id")]
    assert [frame.get("id") for frame in frames] == ["frame0", "frame1", "frame2"]
    assert ["".join(frame.itertext()).split("demo")[-1].strip() for frame in frames] == [
        "calm",
        "pressure\xa0<95\xa0%>",
        "PASS",
    ]
    assert "#frame2 { visibility: visible; }" in drawn


def test_frames_follow_each_other_without_a_gap() -> None:
    drawn = picture([Text("one"), Text("two")])
    assert "27.273%, 100.000% { visibility: visible; }" in drawn  # 3 s of 11 s, then the rest
