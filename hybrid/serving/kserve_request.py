"""Takes a ``ModelInferRequest`` apart: a text, and how to go on from it.

Sampling fields come as request parameters, as input tensors, or as one JSON object in
the input ``sampling_parameters``, as with Triton's own vLLM backend.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Final

from hybrid.scheduler import InvalidRequest, ModelNotFound, SamplingParams
from hybrid.scheduler.field_checks import check_count
from hybrid.scheduler.shown_value import shown

from .kserve_tensors import TensorValue, read_inputs
from .served_model import ServedModel
from .vllm_request import CHARACTERS_PER_TOKEN

VERSION: Final = "1"
"""The one version of the one model."""
TEXT_INPUT: Final = "text_input"
STREAM_INPUT: Final = "stream"
SAMPLING_INPUT: Final = "sampling_parameters"
EMPTY_FINAL: Final = "triton_enable_empty_final_response"
"""Taken and left alone: the last response says that it is the last, empty or not."""

OUTPUTS: Final = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "num_input_tokens": "UINT32",
    "num_output_tokens": "UINT32",
}
"""Names and datatypes; one value a sample."""
MAX_OUTPUTS: Final = 16
"""Names of one request; some come twice."""
SAMPLING_FIELDS: Final = frozenset(entry.name for entry in fields(SamplingParams)) - {
    "detokenize",
    "logprobs",
    "prompt_logprobs",
    "structured_output",
}
"""Those whose effect shows in a text, and that plain values can say."""
MAX_JSON_CHARACTERS: Final = 100_000
"""Thousands of biases; a text of megabytes would hold up everybody."""
MAX_NUMBER_CHARACTERS: Final = 40
_TEXTS: Final = frozenset({"stop", "bad_words"})
_LISTS: Final = _TEXTS | {"stop_token_ids", "allowed_token_ids"}


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request in the engine's words."""

    prompt: str
    params: SamplingParams
    stream: bool
    """Whether the answer is wanted piece by piece."""
    outputs: tuple[str, ...]
    """Names of the tensors that are wanted."""
    num_prompt_tokens: int
    """An estimate."""


def is_served(name: str, version: str, model: ServedModel) -> bool:
    """Whether a client means this model; no version stands for any."""
    return name == model.name and version in ("", VERSION)


def check_model(name: str, version: str, model: ServedModel) -> None:
    """Refuse a model that is not served here.

    Raises:
        ModelNotFound: says what is served.
    """
    if not is_served(name, version, model):
        raise ModelNotFound(
            f"model {shown(name)} version {shown(version)} is not served here: "
            f"{shown(model.name)} version {VERSION} is"
        )


def parse_infer_request(request: Any, model: ServedModel) -> InferRequest:
    """Read a ``ModelInferRequest``.

    Raises:
        ModelNotFound: it is for another model.
        InvalidRequest: a value is unknown or outside its range; names the field.
    """
    check_model(request.model_name, request.model_version, model)
    inputs = read_inputs(request)
    if TEXT_INPUT not in inputs:
        raise InvalidRequest(f"input {TEXT_INPUT} is missing", field=TEXT_INPUT)
    prompt = _single(TEXT_INPUT, inputs.pop(TEXT_INPUT))
    if not isinstance(prompt, str):
        raise InvalidRequest(f"input {TEXT_INPUT} must be BYTES", field=TEXT_INPUT)
    stream = _single(STREAM_INPUT, inputs.pop(STREAM_INPUT, [False]))
    if not isinstance(stream, bool):
        raise InvalidRequest(f"input {STREAM_INPUT} must be BOOL", field=STREAM_INPUT)
    return InferRequest(
        prompt=prompt,
        params=_sampling_params(request, inputs, model.vocab_size),
        stream=stream,
        outputs=_wanted_outputs(request),
        num_prompt_tokens=len(prompt) // CHARACTERS_PER_TOKEN + 1,
    )


def _single(name: str, values: list[TensorValue]) -> TensorValue:
    if len(values) != 1:
        raise InvalidRequest(
            f"input {shown(name)} has {len(values)} values, must have 1", field=name
        )
    return values[0]


def _sampling_params(
    request: Any, inputs: dict[str, list[TensorValue]], vocab_size: int
) -> SamplingParams:
    # Before anything walks them: this is the loop that serves everybody.
    for name, values in inputs.items():
        _check_length(name, len(values), vocab_size, "values")
    given: dict[str, object] = {}
    for name, value in _sampling_values(request, inputs):
        if name not in SAMPLING_FIELDS:
            known = ", ".join(sorted(SAMPLING_FIELDS))
            raise InvalidRequest(
                f"{shown(name)} is unknown; there are {known}", field=name
            )
        if name in given:
            raise InvalidRequest(f"{name} comes twice", field=name)
        given[name] = _number(value) if name not in _TEXTS else value
    return SamplingParams(**given)  # type: ignore[arg-type] # it checks them itself


def _sampling_values(
    request: Any, inputs: dict[str, list[TensorValue]]
) -> Iterator[tuple[str, object]]:
    """Names and values from wherever they came; neither is checked."""
    for name, parameter in request.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if name != EMPTY_FINAL:
            yield name, None if kind is None else getattr(parameter, kind)
    for name, values in inputs.items():
        if name == SAMPLING_INPUT:
            yield from _parse_object(_single(name, values)).items()
        else:
            yield name, values if name in _LISTS else _single(name, values)


def _number(value: object) -> object:
    """Read what Triton's own examples write as text; the field's check has its say."""
    if isinstance(value, str) and len(value) <= MAX_NUMBER_CHARACTERS:
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _check_length(name: str, length: int, limit: int, unit: str) -> None:
    if length > limit:
        raise InvalidRequest(
            f"input {shown(name)} has {length} {unit}, at most {limit}",
            field=name,
            value=length,
        )


def _parse_object(given: TensorValue) -> dict[str, object]:
    text = str(given)
    _check_length(SAMPLING_INPUT, len(text), MAX_JSON_CHARACTERS, "characters")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"input {SAMPLING_INPUT} is no JSON: {shown(str(error))}",
            field=SAMPLING_INPUT,
        ) from None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"input {SAMPLING_INPUT} is {shown(value)}, must be a JSON object",
            field=SAMPLING_INPUT,
        )
    return value


def _wanted_outputs(request: Any) -> tuple[str, ...]:
    check_count("outputs", len(request.outputs), MAX_OUTPUTS)
    names = tuple(dict.fromkeys(output.name for output in request.outputs))
    unknown = [name for name in names if name not in OUTPUTS]
    if unknown:
        raise InvalidRequest(
            f"output {shown(unknown[0])} is unknown; there are {', '.join(OUTPUTS)}",
            field="outputs",
            value=unknown[0],
        )
    return names or tuple(OUTPUTS)
