"""Start and end of the process: exit codes, error lines, a quick start and exit.

0  done        1  an error, in one line on stderr
2  usage       130  interrupted    143  terminated
"""

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

from .interrupt import EXIT_INTERRUPTED, take_signals
from .standard_streams import note, open_missing_streams

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2


def main() -> NoReturn:
    """Run the console script and end the process."""
    code = EXIT_INTERRUPTED
    try:
        _prepare_process()
        code = run()
    except KeyboardInterrupt:
        # Before run() began, or a second one while it told of the first.
        note("error: interrupted")
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # The engine is closed; taking the libraries apart object by object is wasted time.
    os._exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; whatever goes wrong becomes one line on stderr.

    Args:
        arguments: without the program's name; ``None``: those of the process.

    Returns:
        The exit code.
    """
    if sys.stdout is None:
        note("error: standard output is closed")
        return EXIT_ERROR
    try:
        code = _run_command(arguments)
        sys.stdout.flush()
    except SystemExit as error:
        # SIGTERM, or Typer's way of saying that nobody reads our output any more.
        return error.code if isinstance(error.code, int) else EXIT_ERROR
    except BrokenPipeError:
        return _drop_stdout()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the last place that can turn it into a line; a panic in Rust is no Exception
        return _fail(error)
    if code == EXIT_INTERRUPTED:
        note("error: interrupted")
    return code


def describe(error: BaseException) -> str:
    """Put an error into one line."""
    from hybrid.scheduler.errors import HybridError  # noqa: PLC0415 - light start

    text = " ".join(str(error).split())
    if isinstance(error, HybridError):
        return text or type(error).__name__
    if isinstance(error, OSError):
        if error.filename is not None and error.strerror:
            return f"{error.filename}: {error.strerror}"
        return text or type(error).__name__
    return f"{type(error).__name__}: {text} (HYBRID_DEBUG=1 shows where)"


def _prepare_process() -> None:
    """Set what only a process of our own may set."""
    # A quarter of the time that importing the model libraries takes is the collector
    # walking objects that live to the end anyway; open_engine() turns it on again.
    gc.disable()
    # OpenMP's threads spin for milliseconds after each of a model's small operations.
    # Beside other work that takes the cores from their own siblings (seen: 31 s instead
    # of 10 for a short answer on two busy cores). Ten thousand rounds still cover the
    # gap to the next operation. Read once, by libgomp.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # gRPC writes of every failed handshake to stderr, past our log and in its own form.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    from .library_noise import hush_libraries  # noqa: PLC0415 - the collector first

    take_signals()
    hush_libraries()


def _run_command(arguments: Sequence[str] | None) -> int:
    """Leave it to Typer, but for how wrong usage is told."""
    from typer import Abort, TyperException  # noqa: PLC0415 - main() must come first

    from .app import app  # noqa: PLC0415 - as above

    try:
        code = app(arguments, prog_name="hybrid", standalone_mode=False)
    except TyperException as error:
        # Help was asked for by giving nothing: it is printed, and no error.
        if message := " ".join(error.format_message().split()):
            note(f"error: {message} (see hybrid --help and hybrid COMMAND --help)")
        return EXIT_USAGE
    except Abort:
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def _fail(error: BaseException) -> int:
    note(f"error: {describe(error)}")
    if os.environ.get("HYBRID_DEBUG") == "1":
        import traceback  # noqa: PLC0415 - rarely

        traceback.print_exception(error)
    return EXIT_ERROR


def _drop_stdout() -> int:
    """Point stdout at nothing, so that its last flush cannot fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_ERROR
