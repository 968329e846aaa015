"""An executor's logits as a numpy array."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.interface import SupportsDLPack


def logits_array(logits: SupportsDLPack) -> NDArray[Any]:
    """See ``logits`` without a copy; a numpy array is itself."""
    return logits if isinstance(logits, np.ndarray) else np.from_dlpack(logits)
