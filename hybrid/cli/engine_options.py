"""The options that make an engine, for every command that runs one."""

import dataclasses
import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown

from .progress import show_progress
from .standard_streams import divert_prints

if TYPE_CHECKING:
    from hybrid import LLM

_ENGINE = "Engine"


def _engine_option(
    *names: str,
    help: str,  # noqa: A002 - typer's own word
    metavar: str | None = None,
) -> Any:
    return Option(*names, help=help, metavar=metavar, rich_help_panel=_ENGINE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Keywords of ``LLM``; ``None`` leaves the choice to the engine."""

    model: Annotated[
        str | None,
        _engine_option(
            "--model",
            "-m",
            help="A known name (`hybrid models`), a directory, a .gguf file or a "
            "Hugging Face id.",
        ),
    ] = None
    revision: Annotated[
        str | None,
        _engine_option(
            "--revision", help="Branch, tag or commit of a Hugging Face id."
        ),
    ] = None
    executor: Annotated[
        str,
        _engine_option(
            "--executor", help="Who runs it; `hybrid executors` lists them."
        ),
    ] = "auto"
    executor_options: Annotated[
        list[str] | None,
        _engine_option(
            "--executor-option",
            "-x",
            metavar="name=value",
            help="An option of that executor alone; may be given again.",
        ),
    ] = None
    dtype: Annotated[
        str,
        _engine_option(
            "--dtype", help="Dtype to compute in: auto, float32, bfloat16, float16."
        ),
    ] = "auto"
    device: Annotated[
        str, _engine_option("--device", help="Device to run on: auto, cpu, cuda.")
    ] = "auto"
    block_size: Annotated[
        int | None,
        _engine_option("--block-size", help="Tokens a block of the KV cache holds."),
    ] = None
    kv_cache_memory: Annotated[
        str | None,
        _engine_option("--kv-cache-memory", help='Memory for KV: bytes, or "2GiB".'),
    ] = None
    num_kv_blocks: Annotated[
        int | None,
        _engine_option("--num-kv-blocks", help="Blocks of KV, instead of memory."),
    ] = None
    max_model_len: Annotated[
        int | None,
        _engine_option("--max-model-len", help="Most tokens of prompt and answer."),
    ] = None
    max_num_seqs: Annotated[
        int, _engine_option("--max-num-seqs", help="Most sequences that run at once.")
    ] = 256
    max_num_batched_tokens: Annotated[
        int | None,
        _engine_option("--max-num-batched-tokens", help="Most tokens of one step."),
    ] = None
    max_prefill_chunk_tokens: Annotated[
        int | None,
        _engine_option(
            "--max-prefill-chunk-tokens", help="Most tokens of one prompt in one step."
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        _engine_option(
            "--prefix-caching/--no-prefix-caching",
            help="Whether equal beginnings of prompts are computed once.",
        ),
    ] = None
    enable_chunked_prefill: Annotated[
        bool | None,
        _engine_option(
            "--chunked-prefill/--no-chunked-prefill",
            help="Whether a long prompt may be computed over several steps.",
        ),
    ] = None
    scheduling_policy: Annotated[
        str, _engine_option("--scheduling-policy", help="Who is next: fcfs, priority.")
    ] = "fcfs"
    num_threads: Annotated[
        int | None,
        _engine_option("--num-threads", help="CPU threads; the library's own choice."),
    ] = None
    scheduler: Annotated[
        str | None,
        _engine_option("--scheduler", help="Who decides; `hybrid plugins` lists them."),
    ] = None
    plugins: Annotated[
        str | None,
        _engine_option("--plugins", help="Load these plugins alone: a comma list."),
    ] = None
    plugins_disabled: Annotated[
        str | None,
        _engine_option("--plugins-disabled", help="Plugins not to load: a comma list."),
    ] = None


@contextmanager
def open_engine(options: EngineOptions) -> Iterator["LLM"]:
    """Load a model, showing progress at a terminal; close the engine at the end.

    To the end of that stdout belongs to ``write_now``: what a plugin or a library
    prints meanwhile is no part of an answer.

    Raises:
        HybridError: whatever ``LLM`` raises.
    """
    keywords = engine_keywords(options)
    with divert_prints():
        with show_progress() as progress:
            if progress is not None:
                progress("start", 0, 1)
            from hybrid import LLM  # noqa: PLC0415 - heavy; only some commands need it

            llm = LLM(**keywords, progress=progress)
        try:
            resume_collection()
            yield llm
        finally:
            llm.close()


def engine_keywords(options: EngineOptions) -> dict[str, Any]:
    """Return the keywords of ``LLM`` that were given.

    Raises:
        ConfigError: an executor's option is no ``name=value``.
    """
    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
    }
    # What was not given was not asked for: the engine may choose as executors allow.
    keywords = {name: value for name, value in given.items() if value is not None}
    if options.executor_options is not None:
        keywords["executor_options"] = parse_executor_options(options.executor_options)
    return keywords


def parse_executor_options(assignments: Sequence[str]) -> dict[str, Any]:
    """Read ``name=value``: a value that is JSON is what it says, any other is a text.

    Raises:
        ConfigError: there is no name or no ``=``, or a name comes twice.
    """
    parsed: dict[str, Any] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not name or not separator:
            raise ConfigError(
                f"--executor-option is {shown(assignment)}, must be name=value"
            )
        if name in parsed:
            raise ConfigError(f"--executor-option {shown(name)} is given twice")
        try:
            parsed[name] = json.loads(text)
        except ValueError:
            parsed[name] = text
    return parsed


def resume_collection() -> None:
    """Let the collector run again, past everything loaded so far, if it was stopped."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
