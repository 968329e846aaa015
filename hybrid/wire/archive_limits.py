"""How large a tokenizer's zip may be: as much as a gateway unpacks (smg 1.13)."""

from typing import Final

MAX_FILES: Final = 50
MAX_BYTES: Final = 200_000_000
MAX_UNPACKED_BYTES: Final = 500_000_000
