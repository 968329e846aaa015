"""Answers keep to their form whatever the logits; judged by jsonschema and ``re``."""

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from hybrid.sampler.sampler import Sampler
from hybrid.scheduler import FinishReason
from tests.hybrid.form_stand import (
    EOS,
    Rows,
    answer,
    byte_fallback,
    byte_level,
    compiler_of,
    form,
    hostile_logits,
    num_ids,
    random_logits,
)
from tests.hybrid.sampler_stand import make_request, step
from tests.hybrid.token_bytes import token_bytes

VOCABULARIES = [byte_level, byte_fallback]
FEW = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def logits() -> st.SearchStrategy[Rows]:
    """Fair ones, and some that want an end, a byte or special tokens all the time."""
    anything = st.integers(0, num_ids(byte_level()) - 1)
    return st.one_of(
        st.integers(0, 2**32).map(random_logits),
        st.lists(anything, min_size=1, max_size=40).map(hostile_logits),
        st.just(hostile_logits(EOS)),
        st.just(hostile_logits(range(3))),
    )


def _bounded(keyword: str, most: int) -> st.SearchStrategy[dict[str, int]]:
    names = f"min{keyword}", f"max{keyword}"
    limits = st.tuples(st.integers(0, most), st.integers(0, most)).map(sorted)
    return limits.map(lambda pair: dict(zip(names, pair, strict=True)))


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.text('ab\u00e9" \n', max_size=3), inner, max_size=3).map(
        lambda properties: {
            "type": "object",
            "properties": properties,
            "required": sorted(properties)[::2],
            "additionalProperties": False,
        }
    )


LEAVES = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}]),
    st.tuples(st.integers(-300, 300), st.integers(0, 300)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": sum(pair)}
    ),
    _bounded("Length", 5).map(lambda limits: {"type": "string"} | limits),
    st.lists(
        # llguidance reads a schema's numbers as floats of 64 bits.
        st.text(max_size=4) | st.integers(-(2**53), 2**53),
        min_size=1,
        max_size=3,
    ).map(lambda values: {"enum": values}),
    st.just({"type": "string", "pattern": "^[ab]{1,3}$"}),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        _objects(inner),
        st.tuples(inner, _bounded("Items", 3)).map(
            lambda pair: {"type": "array", "items": pair[0]} | pair[1]
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}),
    ),
    max_leaves=5,
)
"""Bounded throughout, so that every answer comes to its end."""


@pytest.mark.parametrize("make", VOCABULARIES)
@FEW
@given(schema=SCHEMAS, rows=logits(), temperature=st.sampled_from([0.0, 1.0, 50.0]))
def test_an_answer_validates_against_its_schema(
    make: Callable[[], Tokenizer], schema: Any, rows: Rows, temperature: float
) -> None:
    """It ends by itself, is JSON, and is what the schema says."""
    got = answer(
        form("json_schema", json.dumps(schema)),
        rows,
        make=make,
        temperature=temperature,
        seed=1,
    )
    assert got.reason is FinishReason.STOP
    jsonschema.validate(json.loads(got.text), schema)


def test_a_large_schema_is_followed() -> None:
    """A thousand properties, all but one optional, as generated ones may have."""
    properties = {f"p{index}": {"type": "boolean"} for index in range(1000)}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["p999"],
        "additionalProperties": False,
    }
    text = json.dumps(schema)
    got = answer(form("json_schema", text), hostile_logits(EOS), temperature=0.0)
    assert got.reason is FinishReason.STOP
    jsonschema.validate(json.loads(got.text), schema)


CHARACTERS = st.sampled_from('abc019 -_"{}/\\.*+?()[]|^$\u00e9\u6f22\U0001f600')
ATOMS = st.one_of(
    CHARACTERS.map(re.escape), st.sampled_from(["[a-c]", "[^a-z]", "[0-9]", "."])
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda p: f"(?:{'|'.join(p)})"),
        st.tuples(inner, st.sampled_from(["?", "{2}", "{0,3}", "{1,2}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("make", VOCABULARIES)
@FEW
@given(pattern=PATTERNS, rows=logits())
def test_an_answer_is_matched_by_its_pattern(
    make: Callable[[], Tokenizer], pattern: str, rows: Rows
) -> None:
    """As a whole, by Python's own reading of the pattern."""
    got = answer(form("regex", pattern), rows, make=make, seed=2)
    assert got.reason is FinishReason.STOP
    assert re.fullmatch(pattern, got.text), (pattern, got.text)


@pytest.mark.parametrize("make", VOCABULARIES)
@FEW
@given(
    choices=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
        min_size=1,
        max_size=5,
    ),
    rows=logits(),
)
def test_an_answer_is_one_of_its_choices(
    make: Callable[[], Tokenizer], choices: list[str], rows: Rows
) -> None:
    """Character for character, quotes, line ends and emojis too."""
    got = answer(form("choice", choices=choices), rows, make=make, seed=3)
    assert got.reason is FinishReason.STOP
    assert b"".join(_bytes_of(make(), got.token_ids)).decode() in choices


def test_every_choice_can_be_drawn() -> None:
    """None is lost on the way, be it the beginning of another."""
    choices = ["a", "ab", "abc", "x\n", '"', "\\"]
    drawn = {
        answer(form("choice", choices=choices), random_logits(seed), seed=seed).text
        for seed in range(80)
    }
    assert drawn == set(choices)


@FEW
@given(seed=st.integers(0, 2**32))
def test_a_json_object_parses(seed: int) -> None:
    """Whatever it holds; cut off it is still the beginning of one."""
    got = answer(form("json_object"), random_logits(seed), seed=seed, max_tokens=1000)
    if got.reason is FinishReason.STOP:
        assert isinstance(json.loads(got.text), dict)
    else:
        assert got.text.startswith("{")


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "<" item ("," item)* ">"\nitem ::= [0-9]{1,3} | "(" item ")"',
        'start: "<" item ("," item)* ">"\nitem: /[0-9]{1,3}/ | "(" item ")"',
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_both_notations_of_a_grammar_are_followed(grammar: str, seed: int) -> None:
    """GBNF and Lark; brackets match, which no regular expression could ask for."""
    got = answer(form("grammar", grammar), random_logits(seed), seed=seed)
    assert got.reason is FinishReason.STOP
    for item in got.text[1:-1].split(","):
        match = re.fullmatch(r"(\(*)[0-9]{1,3}(\)*)", item)
        assert match is not None
        assert len(match[1]) == len(match[2])
    assert (got.text[0], got.text[-1]) == ("<", ">")


@pytest.mark.parametrize("eos", [(0,), (0, 1)])
def test_the_end_comes_where_the_answer_is_complete_and_nowhere_else(
    eos: tuple[int, ...],
) -> None:
    """Wanted everywhere it waits; hated everywhere it still comes in the end."""
    pattern = form("regex", "ab?")
    eager = answer(pattern, hostile_logits(eos), eos=eos, temperature=0.0)
    assert (eager.text, eager.reason) == ("a", FinishReason.STOP)

    def hating(position: int, columns: int) -> np.typing.NDArray[np.float32]:
        row = random_logits(position)(position, columns)
        row[list(eos)] = -1e30
        return row

    late = answer(pattern, hating, eos=eos, temperature=0.0)
    assert (late.text, late.reason) == ("ab", FinishReason.STOP)


def test_an_end_that_is_a_text_does_not_come_as_text() -> None:
    """A model may name an ordinary token its end; "a" then ends, and is not drawn."""
    end = byte_level().token_to_id("a")
    got = answer(
        form("regex", "[ab]{3}"),
        hostile_logits([end]),
        eos=(end,),
        temperature=0.0,
    )
    assert (got.text, got.reason) == ("bbb", FinishReason.STOP)


def test_an_answer_without_a_form_is_drawn_as_before() -> None:
    """A neighbour's form changes no other row."""
    columns = num_ids(byte_level())
    row = random_logits(5)(0, columns)
    free = make_request("free", seed=9)
    digits = form("regex", "[0-9]+")
    held = make_request("held", seed=9, structured_output=digits)
    alone = Sampler(columns)
    alone.add_request(free)
    both = Sampler(columns)
    both.add_request(free)
    both.add_request(held, compiler_of().compile(digits))
    sampled = step(both, [(free, row), (held, row)])
    assert sampled.token_ids[0] == step(alone, [(free, row)]).token_ids[0]
    assert byte_level().decode([sampled.token_ids[1][0]]).isdigit()


def _bytes_of(tokenizer: Tokenizer, token_ids: list[int]) -> list[bytes]:
    return [token_bytes(tokenizer, token_id) for token_id in token_ids]
