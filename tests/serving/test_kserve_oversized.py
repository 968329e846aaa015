"""Tensors and names without end are refused by their number, before they are read."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from hybrid import InvalidRequest
from hybrid.serving import kserve_tensors
from hybrid.serving.kserve_messages import MESSAGES
from hybrid.serving.kserve_request import parse_infer_request
from tests.hybrid.null_stand import make_engine
from tests.serving.kserve_stand import Message, add_input, infer_request
from tests.serving.service_stand import model_of

MANY = 2**18 + 1


def tensors(message: Message) -> None:
    """Add 64 to the one that is there."""
    message.inputs.extend([MESSAGES["InferInputTensor"]()] * 64)


def raw_tensors(message: Message) -> None:
    """Add as many contents as nobody asks for."""
    message.raw_input_contents.extend([b""] * 65)


def outputs(message: Message) -> None:
    """Ask for one, many times."""
    output = MESSAGES["InferRequestedOutputTensor"](name="text_output")
    message.outputs.extend([output] * 17)


def values(message: Message) -> None:
    """Typed ones."""
    add_input(message, "stop_token_ids", "INT32", int_contents=[1] * MANY)


def raw_numbers(message: Message) -> None:
    """A byte each."""
    message.inputs[0].ClearField("contents")
    message.inputs[0].datatype = "INT8"
    message.raw_input_contents.append(b"\0" * MANY)


def raw_texts(message: Message) -> None:
    """Empty ones, by their lengths alone."""
    message.inputs[0].ClearField("contents")
    message.raw_input_contents.append(b"\0\0\0\0" * (MANY + 9))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (tensors, "inputs has 65 entries, at most 64"),
        (raw_tensors, "raw_input_contents has 65 entries, at most 64"),
        (outputs, "outputs has 17 entries, at most 16"),
        (values, f"stop_token_ids' has {MANY} entries, at most"),
        (raw_numbers, f"text_input' has {MANY} entries, at most"),
        (raw_texts, f"text_input' has {MANY} entries, at most"),
    ],
)
def test_what_is_too_many_is_not_read(
    change: Callable[[Message], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one value of it is made into Python's own; texts stop at the limit."""
    unpack = Mock()
    monkeypatch.setattr(kserve_tensors.struct, "unpack", unpack)
    message: Any = infer_request()
    change(message)
    with pytest.raises(InvalidRequest, match=told):
        parse_infer_request(message, model_of(make_engine()))
    assert unpack.mock_calls == []
