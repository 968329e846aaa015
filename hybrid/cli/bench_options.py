"""The options of ``hybrid bench``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Option

from hybrid.scheduler.shown_value import shown

if TYPE_CHECKING:
    from hybrid.bench import Workload

_WORK = "Work"
_ENGINE = "Engine"


def _option(
    *names: str,
    help: str,  # noqa: A002 - typer's own word
    panel: str,
    metavar: str | None = None,
) -> Any:
    return Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """What engines are asked to do."""

    batch: Annotated[
        str,
        _option(
            "--batch",
            panel=_WORK,
            metavar="n,n",
            help="Requests that come at once: a comma list.",
        ),
    ] = "1,8,32"
    input_tokens: Annotated[
        int, _option("--input-tokens", panel=_WORK, help="Tokens of a prompt.")
    ] = 128
    output_tokens: Annotated[
        int, _option("--output-tokens", panel=_WORK, help="Tokens of an answer.")
    ] = 128
    context: Annotated[
        str | None,
        _option(
            "--context",
            panel=_WORK,
            metavar="n,n",
            help="Tokens of prompt and answer together, a comma list; in place of "
            "--input-tokens.",
        ),
    ] = None
    rounds: Annotated[
        int,
        _option("--rounds", panel=_WORK, help="Rounds that count, after a first."),
    ] = 3

    def workloads(self) -> list["Workload"]:
        """Every batch with every context.

        Raises:
            BadParameter: a list holds no numbers, or a context no prompt.
        """
        from hybrid.bench import Workload  # noqa: PLC0415 - brings numpy

        inputs = [self.input_tokens]
        if self.context is not None:
            contexts = _numbers("--context", self.context)
            inputs = [context - self.output_tokens for context in contexts]
            if min(inputs) < 1:
                raise BadParameter(
                    f"--context {min(contexts)} leaves no prompt beside "
                    f"--output-tokens {self.output_tokens}"
                )
        return [
            Workload(batch, tokens, self.output_tokens)
            for tokens in inputs
            for batch in _numbers("--batch", self.batch)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOptions:
    """Which engines: fields of ``EngineConfig``, ``None`` leaves the engine's own."""

    executors: Annotated[
        list[str] | None,
        _option(
            "--executor",
            panel=_ENGINE,
            metavar="name[:option=value,...]",
            help="Who runs it, with options of its own; again: to compare.",
        ),
    ] = None
    dtype: Annotated[
        str | None,
        _option("--dtype", panel=_ENGINE, help="Dtype to compute in."),
    ] = None
    device: Annotated[
        str | None, _option("--device", panel=_ENGINE, help="Device to run on.")
    ] = None
    num_threads: Annotated[
        int | None, _option("--num-threads", panel=_ENGINE, help="CPU threads.")
    ] = None
    block_size: Annotated[
        int | None,
        _option("--block-size", panel=_ENGINE, help="Tokens a block of KV holds."),
    ] = None
    kv_cache_memory: Annotated[
        str | None,
        _option(
            "--kv-cache-memory", panel=_ENGINE, help='Memory for KV: bytes, or "2GiB".'
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        _option(
            "--max-num-batched-tokens", panel=_ENGINE, help="Most tokens of one step."
        ),
    ] = None

    def keywords(self) -> dict[str, Any]:
        """Return what was given, as keywords of ``EngineConfig``."""
        given = {
            "dtype": self.dtype,
            "device": self.device,
            "num_threads": self.num_threads,
            "block_size": self.block_size,
            "kv_cache_memory": self.kv_cache_memory,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Where the figures go, beside the table."""

    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Write results.json and plots to this folder."),
    ] = None
    as_json: Annotated[
        bool, Option("--json", help="The JSON object instead of the table.")
    ] = False


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise BadParameter(
            f"{name} is {shown(text)}, must be whole numbers, separated by commas"
        ) from None
