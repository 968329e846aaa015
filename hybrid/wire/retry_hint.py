"""When a full server wants to be asked again."""

from typing import Final

RETRY_AFTER: Final = "retry-after-ms"
"""Key of the trailer that says so, in milliseconds."""
