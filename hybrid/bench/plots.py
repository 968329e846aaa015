"""A report as pictures: PNG files, drawn without a display."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybrid.scheduler.errors import ConfigError

from .measurement import Measurement, Percentiles
from .report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Value = Callable[[Measurement], float | None]
"""What is drawn of a measurement; ``None``: nothing."""

_MIB: Final = 2**20
_DASHES: Final = ("-", "--", ":")
_LEGEND: Final = "p50 solid, p90 dashed, p99 dotted"


@dataclass(frozen=True, slots=True)
class _Panel:
    """One half of a figure."""

    title: str
    lines: tuple[Value, ...]
    """Solid, dashed, dotted."""


def _percentiles(
    read: Callable[[Measurement], Percentiles | None],
) -> tuple[Value, ...]:
    """Three lines of a latency, in milliseconds."""

    def line(name: str) -> Value:
        def value(measured: Measurement) -> float | None:
            latency = read(measured)
            return None if latency is None else 1000.0 * float(getattr(latency, name))

        return value

    return tuple(line(name) for name in ("p50", "p90", "p99"))


def _decode(measured: Measurement) -> float | None:
    rate = measured.decode_tokens_per_s
    return None if rate is None else rate.median


_INTER_TOKEN: Final = _Panel(
    f"milliseconds between tokens\n({_LEGEND})",
    _percentiles(lambda one: one.inter_token_s),
)
_FIGURES: Final[Mapping[str, tuple[_Panel, _Panel]]] = {
    "throughput": (
        _Panel("answer tokens/s", (lambda one: one.total_tokens_per_s.median,)),
        _Panel("answer tokens/s, prefill left out", (_decode,)),
    ),
    "latency": (
        _Panel(
            f"milliseconds to the first token\n({_LEGEND})",
            _percentiles(lambda one: one.ttft_s),
        ),
        _INTER_TOKEN,
    ),
    "memory": (
        _Panel("peak RSS, MiB", (lambda one: one.peak_rss_bytes / _MIB,)),
        _Panel("KV in use, MiB", (lambda one: one.kv_bytes / _MIB,)),
    ),
    "context": (
        _Panel("prompt tokens/s", (lambda one: one.prefill_tokens_per_s.median,)),
        _INTER_TOKEN,
    ),
}


def check_matplotlib() -> None:
    """Ask for matplotlib before minutes are spent on what cannot be drawn.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import matplotlib  # noqa: F401, ICN001, PLC0415 - an extra; only asked for
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib, which is not installed: "
            "pip install 'hybrid-llm-engine[bench]'"
        ) from error


def write_plots(report: Report, folder: Path) -> tuple[Path, ...]:
    """Draw throughput, latency and memory against the batch, and cost by context.

    Args:
        report: what to draw.
        folder: an existing directory.

    Returns:
        The files; ``context.png`` is among them if there are several contexts.

    Raises:
        OSError: a file cannot be written.
    """
    contexts = {one.workload.context for one in report.measurements}
    names = [name for name in _FIGURES if name != "context" or len(contexts) > 1]
    return tuple(_draw(report, name, folder / f"{name}.png") for name in names)


def _draw(report: Report, name: str, path: Path) -> Path:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    # Without pyplot there is no global state, and a figure by itself draws with Agg.
    figure = Figure(figsize=(11.0, 4.5), layout="constrained")
    x = "context" if name == "context" else "batch"
    for axes, panel in zip(figure.subplots(1, 2), _FIGURES[name], strict=True):
        _draw_panel(axes, panel, report, x)
    what = "cost" if name == x else name
    figure.suptitle(f"{report.options.get('model') or 'no model'}: {what} by {x}")
    figure.savefig(path, dpi=120)
    return path


def _draw_panel(axes: "Axes", panel: _Panel, report: Report, x: str) -> None:
    other = "batch" if x == "context" else "context"
    for index, (label, series) in enumerate(_series(report, other).items()):
        for value, dashes in zip(panel.lines, _DASHES, strict=False):
            axes.plot(
                *_points(series, x, value),
                color=f"C{index}",
                linestyle=dashes,
                marker=".",
                label=label if dashes == "-" else None,
            )
    ticks = sorted({getattr(one.workload, x) for one in report.measurements})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("context, tokens" if x == "context" else "batch, requests")
    axes.set_title(panel.title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")


def _points(
    series: Sequence[Measurement], x: str, value: Value
) -> tuple[list[int], list[float]]:
    """Where a line goes through; x ascending."""
    ordered = sorted(series, key=lambda one: int(getattr(one.workload, x)))
    points = [(getattr(one.workload, x), value(one)) for one in ordered]
    known = [(at, height) for at, height in points if height is not None]
    return [at for at, _ in known], [height for _, height in known]


def _series(report: Report, other: str) -> dict[str, list[Measurement]]:
    """Measurements by engine and by what is not on the axis, where that varies."""
    varies = len({getattr(one.workload, other) for one in report.measurements}) > 1
    series: dict[str, list[Measurement]] = {}
    for one in report.measurements:
        tail = f", {other} {getattr(one.workload, other)}" if varies else ""
        series.setdefault(f"{one.engine}{tail}", []).append(one)
    return series
