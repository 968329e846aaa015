"""``hybrid build``: a checkpoint compiled for the executor ``cpu``."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from .progress import show_progress
from .standard_streams import divert_prints
from .table import print_table
from .verbosity import Verbose, start_logging

if TYPE_CHECKING:
    from hybrid.backends.cpu.engine_directory import BuiltEngine


def build(
    model: Annotated[
        str,
        Argument(
            help="A known name (`hybrid models`), a directory, a .gguf file or a "
            "Hugging Face id."
        ),
    ],
    output: Annotated[
        Path,
        Option("--output", "-o", help="Directory to write; an engine is replaced."),
    ],
    quantization: Annotated[
        str, Option("--quantization", help="Of weights: auto, int8, int4, bf16, fp32.")
    ] = "auto",
    kv_cache_dtype: Annotated[
        str,
        Option("--kv-cache-dtype", help="Of KV: auto, float32, bfloat16, int8."),
    ] = "auto",
    revision: Annotated[
        str | None,
        Option("--revision", help="Branch, tag or commit of a Hugging Face id."),
    ] = None,
    verbose: Verbose = 0,
) -> None:
    """Compile a model for the executor cpu; prints what it takes and where it lies."""
    start_logging(verbose)
    with divert_prints(), show_progress() as progress:
        from hybrid.backends.cpu.build_options import BuildOptions  # noqa: PLC0415 - heavy
        from hybrid.model_build import build_model  # noqa: PLC0415 - as above

        options = BuildOptions(quantization=quantization, kv_cache_dtype=kv_cache_dtype)
        engine = build_model(
            model, output, options, revision=revision, progress=progress
        )
    _print(engine)


def _print(engine: "BuiltEngine") -> None:
    from rich.markup import escape  # noqa: PLC0415 - only where a table is drawn
    from rich.table import Table  # noqa: PLC0415

    table = Table("engine", escape(str(engine.directory)), box=None)
    for row in _rows(engine):
        table.add_row(*row)
    print_table(table)


def _rows(engine: "BuiltEngine") -> Iterator[tuple[str, str]]:
    from rich.filesize import decimal  # noqa: PLC0415 - only where a table is drawn

    memory = engine.memory
    yield "architecture", engine.shape.architecture
    yield "quantization", engine.quantization
    for name, size in memory.weights_by_format.items():
        yield f"{name} weights" if name != "vectors" else name, decimal(size)
    yield "all weights", decimal(memory.weights_bytes)
    activations = f"{decimal(memory.arena_bytes)} for {engine.unit_tokens} tokens"
    naive = decimal(memory.unshared_arena_bytes)
    yield "activations", f"{activations} at once ({naive} if nothing were shared)"
    cache = f"{decimal(engine.kv_bytes_per_token)} a token"
    yield "KV cache", f"{cache} ({engine.kv_cache_dtype})"
