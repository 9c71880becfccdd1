"""Plays the demo and draws what it showed: an animated SVG for the README, one frame for each scene.

`python tools/demo_picture.py docs/demo.svg [--seconds N]`. Each frame holds the live table as it was at the
end of its scene; the last one the verdict. No picture is written when the demo fails.
"""

from __future__ import annotations

import argparse
import asyncio
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.terminal_theme import SVG_EXPORT_THEME

from controlplane.cli.demo_screen import screen, verdict
from controlplane.demo.run import Progress, play, running_stage

COLUMNS, CHAR_WIDTH, LINE_HEIGHT, MARGIN = 80, 12.2, 24.4, 14
FRAME_S, LAST_FRAME_S = 3.0, 8.0
PROMPT = "$ make demo"
_PART = "\x00"  # between the parts of a frame that rich is asked for


def frame(number: int, shown: RenderableType) -> tuple[str, str, int]:
    """Its style rules, its text elements, and how many lines it has."""
    console = Console(width=COLUMNS, file=io.StringIO(), record=True, force_terminal=True)
    console.print(PROMPT, style="dim", highlight=False)
    console.print(shown)
    lines = len(console.export_text(clear=False).splitlines())
    wanted = _PART.join(("{styles}", "{lines}", "{matrix}"))
    styles, clips, text = console.export_svg(code_format=wanted, unique_id=f"f{number}").split(_PART)
    return styles, f"<defs>{clips}</defs>{text}", lines


def picture(frames: list[RenderableType]) -> str:
    """One SVG that shows the frames in turn, and the last one where nothing may move."""
    drawn = [frame(number, shown) for number, shown in enumerate(frames)]
    height = max(lines for _, _, lines in drawn) * LINE_HEIGHT + 2 * MARGIN
    width = COLUMNS * CHAR_WIDTH + 2 * MARGIN
    total_s = FRAME_S * (len(frames) - 1) + LAST_FRAME_S
    groups = "\n".join(
        f'<g class="frame" id="frame{number}">{text}</g>' for number, (_, text, _) in enumerate(drawn)
    )
    return f"""\
<svg viewBox="0 0 {width:g} {height:g}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>tidegate demo: limits follow GPU utilisation, and a verdict</title>
<style>
text {{ font: 20px "Fira Code", "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
{"".join(styles for styles, _, _ in drawn)}
.frame {{ visibility: hidden; }}
#frame{len(frames) - 1} {{ visibility: visible; }}
{_timing(len(frames), total_s)}
</style>
<rect width="{width:g}" height="{height:g}" rx="8" fill="{SVG_EXPORT_THEME.background_color.hex}"/>
<g transform="translate({MARGIN}, {MARGIN})">
{groups}
</g>
</svg>
"""


def _timing(count: int, total_s: float) -> str:
    rules = []
    for number in range(count):
        begin = 100 * FRAME_S * number / total_s
        end = 100 * FRAME_S * (number + 1) / total_s if number < count - 1 else 100.0
        rules.append(
            f"@keyframes show{number} {{ 0%, {begin:.3f}% {{ visibility: hidden; }}"
            f" {begin:.3f}%, {end:.3f}% {{ visibility: visible; }}"
            f" {end:.3f}%, 100% {{ visibility: {'visible' if number == count - 1 else 'hidden'}; }} }}\n"
            f"#frame{number} {{ animation: show{number} {total_s:g}s step-end infinite; }}"
        )
    return "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(rules) + "\n}"


async def shown_by_demo(seconds: float) -> list[RenderableType]:
    """Plays it; what it showed at the end of each scene, and the verdict. SystemExit when it fails."""
    progress = Progress()
    newest: dict[str, Mapping[str, Any]] = {}

    def changed() -> None:
        if progress.decision is not None and ":" in progress.say:
            newest[progress.say] = progress.decision

    progress.changed = changed
    async with running_stage(progress, real_model=False) as stage:
        report = await play(stage, progress, seconds)
    if not report.passed:
        raise SystemExit("the demo failed; no picture was drawn")
    scenes = [screen(say, decision, COLUMNS) for say, decision in newest.items()]
    return [*scenes, verdict(stage.envoy_version, report)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=45.0)
    given = parser.parse_args()
    given.path.write_text(picture(asyncio.run(shown_by_demo(given.seconds))), encoding="utf-8")


if __name__ == "__main__":
    main()
