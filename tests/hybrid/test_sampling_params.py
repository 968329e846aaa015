"""Sampling parameters: every value outside its range names its field."""

import copy
import dataclasses
import itertools
import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hybrid.scheduler.errors import InvalidRequest
from hybrid.scheduler.sampling_params import SamplingParams
from hybrid.scheduler.structured_output import GrammarKind, StructuredOutput

BAD = {
    "n": [0, -1, 1025, 1.5, True, None, "2"],
    "temperature": [-0.1, math.nan, math.inf, -math.inf, "1", None, True, 10**400],
    "top_p": [0, 0.0, -0.1, 1.1, math.nan, None],
    "top_k": [-2, 1.5, True, None],
    "min_p": [-0.1, 1.1, math.nan],
    "presence_penalty": [-2.1, 2.1, math.nan, math.inf],
    "frequency_penalty": [-2.1, 2.1, math.nan],
    "repetition_penalty": [0, -1.0, math.nan, math.inf],
    "logit_bias": [
        {-1: 1.0},
        {1: 101},
        {1: -100.5},
        {1: math.nan},
        {1: "x"},
        {"x": 1},
        {1.5: 1},
        {1: 1, "1": 2},
        dict.fromkeys(range(4097), 1),
        [1],
        0,
        5,
    ],
    "allowed_token_ids": [[], [-1], [1.0], ["1"], "12", 5, [True], range(1_000_001)],
    "bad_words": [[""], [1], 5, b"a", ["\ud800"], ["x"] * 1025],
    "min_tokens": [-1, 1.0, None],
    "max_tokens": [0, -1, 1.5, True],
    "seed": [-1, 2**64, 1.0, "7"],
    "stop": ["", ["a", ""], [None], 5, b"", {"a"}, ["\udfff"], ["x"] * 65, "x" * 4097],
    "stop_token_ids": [[-1], [1.5], "1", b"1", 5, [1] * 1025],
    "include_stop_str_in_output": [None, 1, "yes"],
    "ignore_eos": [None, 0, "no"],
    "skip_special_tokens": [None, 1],
    "logprobs": [-1, 1.0, True, 10**9],
    "prompt_logprobs": [-1, "1", True],
    "detokenize": [None, 1],
    "structured_output": ["json_object", {"type": "object"}, 5],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in BAD for value in BAD[field]]
)
def test_a_value_outside_its_range_names_the_field(field: str, value: Any) -> None:
    """The message begins with the field, the attribute carries it."""
    with pytest.raises(InvalidRequest, match=f"^{field}") as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


class Counted(Sequence[Any]):
    """A long list that counts what is read of it."""

    def __init__(self, item: Any) -> None:
        self._item = item
        self.num_read = 0

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, _: Any) -> Any:
        self.num_read += 1
        return self._item


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("stop", "x"),
        ("bad_words", "x"),
        ("stop_token_ids", 1),
        ("allowed_token_ids", 1),
    ],
)
def test_a_list_that_is_too_long_is_not_read(field: str, item: Any) -> None:
    """Its length says enough."""
    values = Counted(item)
    with pytest.raises(InvalidRequest, match=f"^{field} has 10000000 entries, at most"):
        SamplingParams(**{field: values})
    assert values.num_read == 0


def test_neither_are_choices() -> None:
    """They are looked at where the request is, before anybody compiles them."""
    choices: Any = Counted("x")
    with pytest.raises(InvalidRequest, match="10000000 entries, at most 4096"):
        StructuredOutput(GrammarKind.CHOICE, choices=choices)
    assert choices.num_read == 0


def test_ids_without_a_length_are_read_up_to_the_limit() -> None:
    """An iterator without an end is no way to stall a caller."""
    ids = itertools.count()
    with pytest.raises(InvalidRequest, match="stop_token_ids has 1025 entries"):
        SamplingParams(stop_token_ids=ids)  # type: ignore[arg-type] # read as any list
    assert next(ids) == 1025


def test_every_field_has_a_value_that_is_refused() -> None:
    """No field goes unchecked."""
    assert set(BAD) == set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize(
    "params",
    [
        {"n": 1024, "temperature": 5e-324, "top_p": 1, "min_p": 1, "seed": 2**64 - 1},
        {"top_p": 5e-324, "min_p": 0, "temperature": 1e308, "seed": 0},
        {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 5e-324},
        {"min_tokens": 3, "max_tokens": 3, "logprobs": 0, "prompt_logprobs": 0},
        {"logit_bias": {0: 100, "7": -100}, "stop": ["x"] * 64},
    ],
)
def test_the_ends_of_the_ranges_are_taken(params: dict[str, Any]) -> None:
    """Limits are inclusive where the documentation says so."""
    SamplingParams(**params)


def test_values_come_in_one_shape() -> None:
    """A single text, lists, numpy numbers and text ids become tuples and numbers."""
    params = SamplingParams(
        stop="end",
        bad_words=["a"],
        stop_token_ids=np.array([3, 4]),
        allowed_token_ids=[np.int64(5)],
        logit_bias={"7": np.float32(1.5)},
        top_k=-1,
        temperature=np.float32(0.5),
        n=np.int32(2),
    )
    assert params.stop == ("end",)
    assert params.bad_words == ("a",)
    assert params.stop_token_ids == (3, 4)
    assert params.allowed_token_ids == (5,)
    assert dict(params.logit_bias) == {7: 1.5}
    assert (params.top_k, params.temperature, params.n) == (0, 0.5, 2)
    assert all(type(i) is int for i in (*params.stop_token_ids, params.n))
    with pytest.raises(TypeError):
        params.logit_bias[1] = 2.0  # type: ignore[index]


def test_none_is_empty_where_nothing_is_meant() -> None:
    """Interfaces that pass ``None`` for an absent list mean an empty one."""
    params = SamplingParams(stop=None, stop_token_ids=None, logit_bias=None)
    assert params == SamplingParams()


@pytest.mark.parametrize("field", ["stop", "bad_words"])
def test_text_without_detokenising_is_refused(field: str) -> None:
    """What needs text is an error without it, never dropped in silence."""
    with pytest.raises(InvalidRequest, match=f"{field} needs text"):
        SamplingParams(**{field: "x", "detokenize": False})


def test_a_minimum_above_the_maximum_is_refused() -> None:
    """The message carries both numbers."""
    with pytest.raises(
        InvalidRequest, match=r"min_tokens is 5.*max_tokens=4"
    ) as caught:
        SamplingParams(min_tokens=5, max_tokens=4)
    assert caught.value.field == "min_tokens"


def test_equal_parameters_hash_copy_and_pickle_alike() -> None:
    """A plan can be sent to another process, so its parameters can."""
    form = StructuredOutput(GrammarKind.CHOICE, choices=("a", "b"))
    params = SamplingParams(
        logit_bias={3: 1.0}, stop=["a"], seed=1, structured_output=form
    )
    for twin in (copy.deepcopy(params), pickle.loads(pickle.dumps(params))):  # noqa: S301 - our own bytes
        assert twin == params
        assert hash(twin) == hash(params)
    assert params != dataclasses.replace(params, structured_output=None)
    assert hash(SamplingParams(logit_bias={4: 1.0})) != hash(SamplingParams())


@pytest.mark.parametrize(
    ("temperature", "is_greedy"), [(0, True), (9e-6, True), (1e-5, False), (1, False)]
)
def test_what_counts_as_greedy(temperature: float, is_greedy: bool) -> None:
    """Zero, and what is too small to divide by."""
    assert SamplingParams(temperature=temperature).is_greedy is is_greedy
