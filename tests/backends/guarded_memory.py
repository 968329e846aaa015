"""Arrays that end where nobody may read on: one byte further is another page."""

import ctypes
import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_PAGE: Final = mmap.PAGESIZE
_PROT_NONE: Final = 0
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def guarded(values: NDArray[Any]) -> NDArray[Any]:
    """Copy an array to the end of its last page; whoever reads past it is killed.

    Args:
        values: any shape and dtype; the copy is aligned to 64 bytes where its size is
            a multiple of 64.

    Returns:
        The copy, writable, C-contiguous; its memory lives as long as it does.
    """
    values = np.ascontiguousarray(values)
    room = -(-max(values.nbytes, 1) // _PAGE) * _PAGE
    memory = mmap.mmap(-1, room + _PAGE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    failed = _LIBC.mprotect(
        ctypes.c_void_p(first + room), ctypes.c_size_t(_PAGE), _PROT_NONE
    )
    assert not failed, "mprotect refused"
    copy = np.frombuffer(
        memory, values.dtype, count=values.size, offset=room - values.nbytes
    ).reshape(values.shape)
    copy[...] = values
    return copy
