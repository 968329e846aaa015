"""What the user wants said: an argument, a file or standard input, as clean text."""

from pathlib import Path

from hybrid.scheduler.errors import InvalidRequest

from .standard_streams import stdin


def read_prompt_file(path: str) -> str:
    """Read a whole file, or standard input for ``-``; the text is kept as it is.

    Raises:
        InvalidRequest: it is not UTF-8, or standard input is closed.
        OSError: it cannot be read.
    """
    if path == "-":
        return decode(stdin().buffer.read(), "standard input")
    return decode(Path(path).read_bytes(), path)


def decode(data: bytes, origin: str) -> str:
    """Decode UTF-8.

    Raises:
        InvalidRequest: the bytes are not UTF-8; says where they came from.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{origin} is not UTF-8: byte {error.start} is {data[error.start]:#04x}",
            field="prompt",
        ) from error


def check_argument(name: str, text: str) -> str:
    """Refuse an argument whose bytes were not UTF-8 (Python hides them in surrogates).

    Raises:
        InvalidRequest: names the argument.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{name} is not UTF-8", field=name) from error
    return text
