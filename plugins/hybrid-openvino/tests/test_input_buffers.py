"""Inputs are written where the model reads them, whatever lengths come and go."""

import numpy as np
import openvino as ov
from hybrid_openvino.input_buffers import InputBuffers
from hypothesis import given
from hypothesis import strategies as st

steps = st.lists(
    st.lists(st.integers(0, 2**31 - 1), max_size=40), min_size=1, max_size=12
)


@given(steps=steps)
def test_the_last_set_tensor_shows_what_was_written_last(
    steps: list[list[int]],
) -> None:
    """Also when a batch shrinks, vanishes or grows beyond its buffer."""
    tensors: dict[str, ov.Tensor] = {}
    buffers = InputBuffers(tensors.__setitem__)
    for values in steps:
        array = np.array(values, dtype=np.int32)
        longest = np.array(len(values), dtype=np.int32)
        buffers.write({"values": array, "longest": longest})
        assert tensors["values"].data.tolist() == values
        assert tensors["longest"].data.shape == ()
        assert tensors["longest"].data == len(values)


def test_steps_of_one_length_set_no_tensor() -> None:
    """The model is given one tensor and told nothing more."""
    calls: list[str] = []
    buffers = InputBuffers(lambda name, _: calls.append(name))
    for start in range(5):
        buffers.write({"ids": np.arange(start, start + 3)})
    assert calls == ["ids"]
