"""Start and end of the process: exit codes, error lines, a quick start and exit.

0  done        1  an error, in one line on stderr
2  usage       130  interrupted
"""

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


def main() -> NoReturn:
    """Run the console script and end the process."""
    # A quarter of the time that importing the model libraries takes is the collector
    # walking objects that live to the end anyway; open_engine() turns it on again.
    gc.disable()
    # OpenMP's threads spin for milliseconds after each of a model's small operations.
    # Beside other work that takes the cores from their own siblings (seen: 31 s instead
    # of 10 for a short answer on two busy cores). Ten thousand rounds still cover the
    # gap to the next operation. Read once, by libgomp.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    code = run()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
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
    from typer import Abort, TyperException  # noqa: PLC0415 - main() must come first

    from .app import app  # noqa: PLC0415 - as above

    try:
        code = app(arguments, prog_name="hybrid", standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        # Help was asked for by giving nothing: it is printed, and no error.
        if message := " ".join(error.format_message().split()):
            _print_error(f"{message} (see hybrid --help)")
        return EXIT_USAGE
    except Abort:
        code = EXIT_INTERRUPTED
    except SystemExit as error:
        # Typer's way of saying that nobody reads our output any more.
        return error.code if isinstance(error.code, int) else EXIT_ERROR
    except BrokenPipeError:
        return _drop_stdout()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last place that can turn it into a line
        return _fail(error)
    if code == EXIT_INTERRUPTED:
        _print_error("interrupted")
    return code if isinstance(code, int) else 0


def describe(error: Exception) -> str:
    """Put an error into one line."""
    from hybrid.scheduler.errors import HybridError  # noqa: PLC0415 - see run()

    text = " ".join(str(error).split())
    if isinstance(error, HybridError):
        return text or type(error).__name__
    if isinstance(error, OSError):
        if error.filename is not None and error.strerror:
            return f"{error.filename}: {error.strerror}"
        return text or type(error).__name__
    return f"{type(error).__name__}: {text} (HYBRID_DEBUG=1 shows where)"


def _fail(error: Exception) -> int:
    _print_error(describe(error))
    if os.environ.get("HYBRID_DEBUG") == "1":
        import traceback  # noqa: PLC0415 - rarely

        traceback.print_exception(error)
    return EXIT_ERROR


def _print_error(line: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(f"error: {line}\n")


def _drop_stdout() -> int:
    """Point stdout at nothing, so that its last flush cannot fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_ERROR
