"""How much blank an answer in JSON may hold."""

from typing import Final

WHITESPACE: Final = r"[\x20\x0A\x0D\x09]{1,32}"
"""Between two parts, where there is any. Bounded: a small model that falls into blanks
would never come out of them."""
