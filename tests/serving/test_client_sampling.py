"""What a client means by sampling parameters is what the server reads."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid import (
    GrammarKind,
    InvalidRequest,
    SamplingParams,
    StructuredOutput,
    UnsupportedFeature,
)
from hybrid.client.sampling_message import SMALLEST, sampling_message
from hybrid.serving.vllm_sampling import sampling_params_of


def within(low: float, high: float, **more: Any) -> st.SearchStrategy[float]:
    """32-bit floats of a range."""
    return st.floats(low, high, width=32, **more)


params = st.builds(
    SamplingParams,
    n=st.integers(1, 8),
    temperature=st.just(0.0) | within(2**-10, 2.0),
    top_p=within(0.0, 1.0, exclude_min=True, allow_subnormal=False),
    top_k=st.integers(-1, 2**31),
    min_p=within(0.0, 1.0),
    presence_penalty=within(-2.0, 2.0),
    frequency_penalty=within(-2.0, 2.0),
    repetition_penalty=within(0.0, 10.0, exclude_min=True, allow_subnormal=False),
    logit_bias=st.dictionaries(st.integers(0, 96), within(-100.0, 100.0)),
    min_tokens=st.just(0),
    max_tokens=st.none() | st.integers(1, 2**32 - 1),
    seed=st.none() | st.integers(0, 2**31 - 1),
    stop=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)).map(
        tuple
    ),
    stop_token_ids=st.lists(st.integers(0, 2**32 - 1)).map(tuple),
    include_stop_str_in_output=st.booleans(),
    ignore_eos=st.booleans(),
    skip_special_tokens=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
)


def received(sent: SamplingParams) -> SamplingParams:
    """What the server makes of them, once they have been on the wire."""
    message = sampling_message(sent)
    arrived = type(message).FromString(message.SerializeToString())
    return sampling_params_of(arrived, vocab_size=97)


def same_but_detokenize(one: SamplingParams, other: SamplingParams) -> bool:
    """Whether they are equal; where text is made is each side's own affair."""
    names = set(SamplingParams.__dataclass_fields__) - {"detokenize"}
    return all(getattr(one, name) == getattr(other, name) for name in names)


@given(params)
def test_what_is_meant_arrives(sent: SamplingParams) -> None:
    """Every field of every value that 32 bits hold, zeros and absences included."""
    assert same_but_detokenize(received(sent), sent)


def test_defaults_arrive() -> None:
    """Nothing said is nothing changed."""
    assert same_but_detokenize(received(SamplingParams()), SamplingParams())


def test_min_tokens_arrive() -> None:
    """They stand beside a larger limit."""
    sent = SamplingParams(min_tokens=3, max_tokens=5)
    assert same_but_detokenize(received(sent), sent)


@pytest.mark.parametrize("name", ["top_p", "repetition_penalty"])
def test_a_tiny_value_is_not_read_as_absent(name: str) -> None:
    """What 32 bits would round to 0, which means 1 there, stays next to 0."""
    assert getattr(received(SamplingParams(**{name: 1e-60})), name) == SMALLEST


def test_greed_survives_rounding() -> None:
    """Whether tokens are drawn is the same on both sides of the limit."""
    for temperature in (0.0, 1e-50, 0.99999e-5, 1e-5, 1.000001e-5, 0.1):
        sent = SamplingParams(temperature=temperature)
        assert received(sent).is_greedy is sent.is_greedy, temperature


def test_more_ids_than_there_can_be_are_all() -> None:
    """A ``top_k`` beyond the protocol's range means the same as its largest."""
    assert received(SamplingParams(top_k=2**40)).top_k == 2**32 - 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 2**31),
        ("max_tokens", 2**32),
        ("stop_token_ids", (2**32,)),
        ("logit_bias", {2**31: 1.0}),
    ],
)
def test_what_the_protocol_cannot_hold_is_refused(name: str, value: Any) -> None:
    """It is named, with the limit, and never sent as something else."""
    with pytest.raises(InvalidRequest, match=rf"{name} .* at most \d+") as caught:
        sampling_message(SamplingParams(**{name: value}))
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("name", "value"), [("bad_words", ("no",)), ("allowed_token_ids", (1,))]
)
def test_what_the_protocol_lacks_is_refused(name: str, value: Any) -> None:
    """A field without a place in the message is not dropped in silence."""
    with pytest.raises(UnsupportedFeature, match=name):
        sampling_message(SamplingParams(**{name: value}))


FORMS = {
    GrammarKind.JSON_SCHEMA: {"text": '{"type": "integer"}'},
    GrammarKind.JSON_OBJECT: {},
    GrammarKind.REGEX: {"text": "[0-9]+"},
    GrammarKind.GRAMMAR: {"text": 'root ::= "a"'},
    GrammarKind.CHOICE: {"choices": ("yes", "no")},
    GrammarKind.STRUCTURAL_TAG: {"text": "{}"},
}


@pytest.mark.parametrize("kind", list(GrammarKind))
def test_every_form_of_answer_arrives(kind: GrammarKind) -> None:
    """Each kind has a field of its name, and what the server reads is what was sent."""
    form = StructuredOutput(kind, **FORMS[kind])  # type: ignore[arg-type] # by kind
    sent = SamplingParams(structured_output=form)
    assert received(sent).structured_output == form
