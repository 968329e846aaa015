"""The protocol's parameters: what its zeros mean, and that no field is dropped."""

from typing import Any, Final

import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb

from hybrid import InvalidRequest, SamplingParams, UnsupportedFeature
from hybrid.scheduler import GrammarKind, StructuredOutput
from hybrid.serving.vllm_request import REFUSED_FIELDS, parse_request
from hybrid.serving.vllm_sampling import sampling_params_of
from tests.hybrid.null_stand import make_engine
from tests.serving.service_stand import model_of

VOCAB_SIZE: Final = 97

READ: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "temperature": (0.5, {"temperature": 0.5}),
    "top_p": (0.5, {"top_p": 0.5}),
    "top_k": (3, {"top_k": 3}),
    "min_p": (0.25, {"min_p": 0.25}),
    "frequency_penalty": (0.5, {"frequency_penalty": 0.5}),
    "presence_penalty": (-0.5, {"presence_penalty": -0.5}),
    "repetition_penalty": (1.5, {"repetition_penalty": 1.5}),
    "max_tokens": (9, {"max_tokens": 9}),
    "min_tokens": (2, {"min_tokens": 2}),
    "stop": (["a", "b"], {"stop": ("a", "b"), "detokenize": True}),
    "stop_token_ids": ([4, 5], {"stop_token_ids": (4, 5)}),
    "skip_special_tokens": (True, {"skip_special_tokens": True}),
    "ignore_eos": (True, {"ignore_eos": True}),
    "n": (3, {"n": 3}),
    "logprobs": (2, {"logprobs": 2}),
    "prompt_logprobs": (2, {"prompt_logprobs": 2}),
    "seed": (11, {"seed": 11}),
    "include_stop_str_in_output": (True, {"include_stop_str_in_output": True}),
    "logit_bias": ({3: 1.5, 4: -2.0}, {"logit_bias": {3: 1.5, 4: -2.0}}),
}
"""Field: a value, and what it makes of the parameters."""
ELSEWHERE: Final = {
    "truncate_prompt_tokens": "cuts the prompt",
    "spaces_between_special_tokens": "is about the gateway's text",
    "grammar_from_first_token": "is what the engine does anyway",
}
CONSTRAINTS: Final[dict[str, tuple[Any, StructuredOutput]]] = {
    "json_schema": ("{}", StructuredOutput(GrammarKind.JSON_SCHEMA, "{}")),
    "regex": ("a+", StructuredOutput(GrammarKind.REGEX, "a+")),
    "grammar": ('root ::= "a"', StructuredOutput(GrammarKind.GRAMMAR, 'root ::= "a"')),
    "structural_tag": ("{}", StructuredOutput(GrammarKind.STRUCTURAL_TAG, "{}")),
    "json_object": (True, StructuredOutput(GrammarKind.JSON_OBJECT)),
    "choice": (
        pb.ChoiceConstraint(choices=["a", "b"]),
        StructuredOutput(GrammarKind.CHOICE, choices=("a", "b")),
    ),
}
ONEOF: Final = {
    field.name
    for field in pb.SamplingParams.DESCRIPTOR.oneofs_by_name["constraint"].fields
}


def read(**fields: Any) -> SamplingParams:
    """Read a message with these fields set."""
    return sampling_params_of(pb.SamplingParams(**fields), vocab_size=VOCAB_SIZE)


def read_request(message: Any) -> Any:
    """Take a request apart as the service does."""
    return parse_request(message, model_of(make_engine()))


def changed(**fields: Any) -> SamplingParams:
    """What an empty message means, with changes."""
    values = {"skip_special_tokens": False, "detokenize": False}
    return SamplingParams(**(values | fields))


def test_an_empty_message_is_the_engines_defaults() -> None:
    """Zeros of proto3 are no values: nothing is cut, penalised or limited."""
    assert read() == changed()
    assert read().temperature == 1.0
    assert read().top_p == 1.0
    assert read().repetition_penalty == 1.0
    assert read().n == 1
    assert read().max_tokens is None
    assert read().seed is None


@pytest.mark.parametrize("name", sorted(READ))
def test_a_field_reaches_the_engine(name: str) -> None:
    """Set alone, it changes its own parameter and nothing else."""
    value, changes = READ[name]
    assert read(**{name: value}) == changed(**changes)


def test_every_field_of_the_message_is_read() -> None:
    """None is dropped in silence, also of later versions of the protocol."""
    fields = set(pb.SamplingParams.DESCRIPTOR.fields_by_name)
    assert fields == set(READ) | set(ELSEWHERE) | set(CONSTRAINTS)


@pytest.mark.parametrize("name", sorted(CONSTRAINTS))
def test_a_constraint_becomes_the_form_of_the_answer(name: str) -> None:
    """Each kind of the protocol is one of the engine's."""
    value, expected = CONSTRAINTS[name]
    for from_first in (False, True):
        params = read(**{name: value}, grammar_from_first_token=from_first)
        assert params == changed(structured_output=expected)


def test_there_is_no_other_constraint() -> None:
    """A kind that a later protocol adds would be seen here."""
    assert set(CONSTRAINTS) == ONEOF


def test_a_json_object_that_is_not_wanted_is_no_constraint() -> None:
    """False in a oneof is present, and means nothing."""
    assert read(json_object=False) == changed()


@pytest.mark.parametrize("name", ["json_schema", "regex", "grammar", "structural_tag"])
def test_an_empty_constraint_is_refused(name: str) -> None:
    """It is present, so something was meant."""
    with pytest.raises(InvalidRequest, match=name):
        read(**{name: ""})


def test_a_zero_that_is_present_counts() -> None:
    """Where presence is known, 0 is greedy, the drawn id's logprob, a seed."""
    params = read(temperature=0, logprobs=0, prompt_logprobs=0, seed=0)
    assert params == changed(temperature=0, logprobs=0, prompt_logprobs=0, seed=0)


def test_all_log_probabilities_are_as_many_as_ids() -> None:
    """-1 asks for the whole vocabulary; the engine's own limit judges that."""
    params = read(logprobs=-1, prompt_logprobs=-1)
    assert (params.logprobs, params.prompt_logprobs) == (VOCAB_SIZE, VOCAB_SIZE)


@pytest.mark.parametrize(("seed", "expected"), [(-1, None), (-2, 2**64 - 2)])
def test_a_negative_seed(seed: int, expected: int | None) -> None:
    """-1 is none; any other is a seed of its own."""
    assert read(seed=seed).seed == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("frequency_penalty", 3.0),
        ("repetition_penalty", -1.0),
        ("max_tokens", 0),
        ("logprobs", -2),
        ("prompt_logprobs", -2),
        ("stop", [""]),
        ("n", 5000),
        ("logit_bias", {3: 1000.0}),
        ("temperature", float("nan")),
    ],
)
def test_a_value_out_of_range_names_its_field(field: str, value: Any) -> None:
    """The error says which field of the message is at fault."""
    with pytest.raises(InvalidRequest, match=field) as caught:
        read(**{field: value})
    assert caught.value.field == field


def some_value(message: Any, name: str) -> None:
    """Set a field to anything."""
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is None:
        setattr(message, name, 1 if field.cpp_type != field.CPPTYPE_STRING else "{}")
    elif field.is_repeated:
        getattr(message, name).add()
    else:
        getattr(message, name).SetInParent()


READ_OF_REQUEST: Final = {
    "request_id",
    "tokenized",
    "text",
    "sampling_params",
    "stream",
}


@pytest.mark.parametrize(
    "name", sorted(set(pb.GenerateRequest.DESCRIPTOR.fields_by_name) - READ_OF_REQUEST)
)
def test_what_this_server_does_not_do_is_refused_by_name(name: str) -> None:
    """Every field of a request is read or, if it is set, refused."""
    message = pb.GenerateRequest(text="x")
    some_value(message, name)
    with pytest.raises(UnsupportedFeature, match=name):
        read_request(message)
    assert name in REFUSED_FIELDS or name == "data_parallel_rank"


def test_the_first_of_one_rank_is_no_choice() -> None:
    """Rank 0 is the engine itself."""
    message = pb.GenerateRequest(text="x", data_parallel_rank=0)
    assert read_request(message).prompt == "x"


def test_a_request_without_a_prompt_says_where_it_belongs() -> None:
    """Neither ids nor text: the error names both."""
    with pytest.raises(InvalidRequest, match="tokenized or text"):
        read_request(pb.GenerateRequest())


@pytest.mark.parametrize("limit", [0, -2])
def test_a_prompt_cannot_be_cut_to_nothing(limit: int) -> None:
    """Only -1 has a meaning below 1."""
    message = pb.GenerateRequest(
        tokenized={"input_ids": [1, 2]},
        sampling_params={"truncate_prompt_tokens": limit},
    )
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens"):
        read_request(message)


def test_a_text_is_not_cut() -> None:
    """Its tokens are not known when the cut is asked for."""
    message = pb.GenerateRequest(
        text="x", sampling_params={"truncate_prompt_tokens": 1}
    )
    with pytest.raises(UnsupportedFeature, match=r"tokenized\.input_ids"):
        read_request(message)
