"""Shows a caller's value in an error message: short, whatever it is."""

from typing import Final

MAX_CHARACTERS: Final = 80


def shown(value: object) -> str:
    """``repr``, cut in the middle; never fails.

    Python refuses to print integers of more than 4,300 digits, and a caller's own class
    may fail to print itself.
    """
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - the message must be made all the same
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}...{text[-half:]}"
