"""Draws plots as SVG images in `data:` URIs: no files, no display. Nothing that users wrote gets into an image."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from spark_replay.errors import ToolMissingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from spark_replay.report.profile import Epoch, Slot

_INK, _GRID = "#1b1f24", "#d4d9df"
FIRST, SECOND, BAD = "#2f6fbf", "#d9822b", "#b3261e"
_INCHES = (5.0, 3.0)
_BARS = 64
_LAST_S = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
_SETTINGS: dict[Any, Any] = {
    # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "spark_replay",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.parse_math": False,
    "timezone": "UTC",
}


def require_matplotlib() -> None:
    """Check that matplotlib can be imported.

    Raises:
        ToolMissingError: It can't.
    """
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise ToolMissingError("matplotlib isn't installed: pip install 'faust-actors[spark]'") from error


def bars(
    series: Sequence[tuple[str, str, Sequence[float]]],
    *,
    numbers: Sequence[int],
    x: str,
    y: str,
    in_bytes: bool = False,
) -> str:
    """Draw stacked bars, an outline where there are many.

    Args:
        series: Name, colour and heights of each, from the bottom up.
        numbers: What each bar stands for, growing.
        x: The name of the numbers.
        y: What the heights are.
        in_bytes: Whether they are bytes.
    """

    def draw(axes: Axes) -> None:
        base = [0.0] * len(numbers)
        for name, colour, heights in series:
            top = [below + height for below, height in zip(base, heights, strict=True)]
            if len(numbers) <= _BARS:
                axes.bar(range(len(numbers)), heights, bottom=base, color=colour, label=name, width=0.8)
            else:
                edges = [number - 0.5 for number in (*numbers, numbers[-1] + 1)]
                axes.stairs(top, edges, baseline=base, fill=True, color=colour, label=name)
            base = top
        if len(numbers) <= _BARS:
            step = -(-len(numbers) // 12)
            axes.set_xticks(range(0, len(numbers), step), [str(number) for number in numbers[::step]])
        axes.set_ylim(0, max([*base, 1]) * 1.05)
        _counted(axes, "y", in_bytes=in_bytes)
        axes.set(xlabel=x, ylabel=y)
        _keyed(axes, len(series))

    return _drawn(draw)


def ranges(names: Sequence[str], values: Sequence[float], *, x: str) -> str:
    """Draw one bar across for each name, the first on top."""

    def draw(axes: Axes) -> None:
        axes.barh(range(len(names)), values, color=FIRST, height=0.75)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlim(0, max([*values, 1]) * 1.05)
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x", color=_GRID, linewidth=0.6)
        _counted(axes, "x")
        axes.set(xlabel=x)

    return _drawn(draw)


def over_time(slots: Sequence[Slot], slot_ms: int) -> str:
    """Draw how many records and tombstones were written a second."""
    import matplotlib.dates as mdates

    def draw(axes: Axes) -> None:
        edges = [_day(mdates, start) for start in (*(slot.start_ms for slot in slots), slots[-1].start_ms + slot_ms)]
        per_second = 1000 / slot_ms
        records = [slot.records * per_second for slot in slots]
        axes.stairs(records, edges, fill=True, color=FIRST, label="records")
        axes.stairs(
            [slot.tombstones * per_second for slot in slots], edges, fill=True, color=SECOND, label="tombstones"
        )
        axes.set_ylim(0, max([*records, 1e-9]) * 1.05)
        _timed(axes, mdates)
        _counted(axes, "y", whole=False)
        axes.set(ylabel="a second")
        _keyed(axes, 2)

    return _drawn(draw)


def owners(epochs: Sequence[Epoch], partitions: int) -> str:
    """Draw who owned each partition when: a line for an owner's first record to its last, shades taking turns."""
    import matplotlib.dates as mdates
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    def draw(axes: Axes) -> None:
        dated = [(epoch, epoch.first_ms, epoch.last_ms) for epoch in epochs]
        spans = [(epoch, first, last) for epoch, first, last in dated if first is not None and last is not None]
        least, most = min(first for _, first, _ in spans), max(last for _, _, last in spans)
        shortest = max(most - least, 1000) / 150
        lanes: dict[str, list[tuple[float, float, int]]] = {FIRST: [], SECOND: [], BAD: []}
        for epoch, first, last in spans:
            colour = BAD if epoch.overlaps else (FIRST, SECOND)[epoch.epoch % 2]
            until = max(last, first + shortest)
            lanes[colour].append((_day(mdates, first), _day(mdates, until), epoch.partition))
        names = {FIRST: "even epoch", SECOND: "odd epoch", BAD: "overlapping"}
        for colour, lines in lanes.items():
            if lines:
                vertices = [(at, y) for left, right, number in lines for at, y in _box(left, right, number)]
                codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(lines)
                axes.add_patch(PathPatch(Path(vertices, codes), facecolor=colour, linewidth=0, label=names[colour]))
        axes.set_xlim(_day(mdates, least), _day(mdates, most + shortest))
        axes.set_ylim(partitions - 0.5, -0.5)
        _timed(axes, mdates)
        _counted(axes, "y")
        axes.set(ylabel="partition")
        _keyed(axes, 2)

    return _drawn(draw)


def _box(left: float, right: float, number: int) -> Iterable[tuple[float, float]]:
    top, bottom = number - 0.4, number + 0.4
    return ((left, top), (right, top), (right, bottom), (left, bottom), (left, top))


def _day(mdates: Any, at_ms: float) -> float:
    # a timestamp may be beyond what a calendar has, which needs room for a margin
    return float(mdates.date2num(datetime.fromtimestamp(min(at_ms / 1000, _LAST_S), UTC)))


def _timed(axes: Axes, mdates: Any) -> None:
    locator = mdates.AutoDateLocator(minticks=3, maxticks=6)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator))


def _counted(axes: Axes, which: str, *, in_bytes: bool = False, whole: bool = True) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], integer=whole, min_n_ticks=1))
    unit = "B" if in_bytes else ""
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value, unit)))


def short(value: float, unit: str = "") -> str:
    """Return a number with three digits at most, such as `1.2M`."""
    for letter, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{' ' if unit else ''}{letter}{unit}"
    return f"{value:.3g}{' ' if unit else ''}{unit}"


def _keyed(axes: Axes, count: int) -> None:
    if count > 1 and axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, borderaxespad=0.2, handlelength=1)


def _drawn(draw: Callable[[Axes], None]) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.add_subplot()
        axes.set_axisbelow(True)
        axes.grid(axis="y", color=_GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        file = io.BytesIO()
        # without these the same plot is the same image
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
