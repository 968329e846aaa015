"""``hybrid bench``: how fast engines are here, and what memory they take."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from .answer import write_now
from .bench_options import MeasuredOptions, ReportOptions, WorkOptions
from .option_groups import expand_option_groups
from .progress import show_progress
from .standard_streams import note
from .table import print_table
from .verbosity import start_logging

if TYPE_CHECKING:
    from hybrid.bench import Measurement, Report, Spread

_MIB = 2**20


@expand_option_groups
def bench(
    *,
    model: Annotated[
        str | None,
        Argument(help="As --model of `generate`; executor null needs none."),
    ] = None,
    work: WorkOptions,
    engines: MeasuredOptions,
    report: ReportOptions,
) -> None:
    """Measure engines: throughput, latency, memory; each in a process of its own."""
    start_logging(0)
    from hybrid.bench import Benchmark, EngineChoice  # noqa: PLC0415 - when it runs

    choices = [EngineChoice.parse(text) for text in engines.executors or ("auto",)]
    options = {"model": model, **engines.keywords()}
    benchmark = Benchmark(
        choices, work.workloads(), num_rounds=work.rounds, options=options
    )
    if report.output is not None:
        _prepare(report.output)
    with show_progress() as progress:
        found = benchmark.run(progress)
    if report.as_json:
        write_now(found.as_json())
    else:
        _print_table(found)
    if report.output is not None:
        _write(found, report.output)


def _prepare(folder: Path) -> None:
    """Fail before the rounds, not after them."""
    from hybrid.bench.plots import check_matplotlib  # noqa: PLC0415 - an extra

    check_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)


def _write(report: "Report", folder: Path) -> None:
    from hybrid.bench.plots import write_plots  # noqa: PLC0415 - an extra

    path = folder / "results.json"
    report.write(path)
    for written in (path, *write_plots(report, folder)):
        note(f"wrote {written}")


def _print_table(report: "Report") -> None:
    from rich.markup import escape  # noqa: PLC0415 - only where a table is drawn
    from rich.table import Table  # noqa: PLC0415

    table = Table("engine", box=None)
    for head in (
        "batch",
        "in",
        "out",
        "total tok/s (min-max)",
        "prefill tok/s",
        "decode tok/s",
        "first token ms",
        "between tokens ms: p50",
        "p90",
        "p99",
        "peak RSS MiB",
        "KV MiB",
    ):
        table.add_column(head, justify="right")
    for measured in report.measurements:
        table.add_row(escape(measured.engine), *_cells(measured))
    print_table(table)


def _cells(measured: "Measurement") -> tuple[str, ...]:
    work, latency = measured.workload, measured.inter_token_s
    between = ["-"] * 3
    if latency is not None:
        percentiles = (latency.p50, latency.p90, latency.p99)
        between = [f"{1000 * value:.2f}" for value in percentiles]
    total = measured.total_tokens_per_s
    return (
        str(work.batch),
        str(work.input_tokens),
        str(work.output_tokens),
        f"{total.median:.1f} ({total.min:.1f}-{total.max:.1f})",
        _median(measured.prefill_tokens_per_s),
        _median(measured.decode_tokens_per_s),
        f"{1000 * measured.ttft_s.p50:.1f}",
        *between,
        f"{measured.peak_rss_bytes / _MIB:.0f}",
        f"{measured.kv_bytes / _MIB:.1f}",
    )


def _median(rate: "Spread | None") -> str:
    return "-" if rate is None else f"{rate.median:.1f}"
