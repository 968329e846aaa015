"""What a server of ``vllm.grpc.engine.VllmEngine`` is asked: one request a case."""

from typing import Any, Final

CONTEXT: Final = 128
"""Tokens that the server's model must take."""
VOCABULARY: Final = 258
PROMPT: Final = (40, 41, 42, 43, 44)

Case = dict[str, Any]
"""Sampling parameters; ``prompt`` (ids, or text), ``stream`` and other fields of the
request beside them. Greedy, four tokens, past the model's end, unless it says else."""


def make_cases(a: int) -> dict[str, Case]:
    """Every case by name; ``a`` is the id of that letter, which answers are made of."""
    return {**_plain(a), **_forms(), **_refused()}


def _plain(a: int) -> dict[str, Case]:
    sampled = {"n": 2, "seed": 1, "temperature": 1.0}
    says_a = {"logit_bias": {a: 100.0}, "max_tokens": 8}
    stop_string = {**says_a, "stop": ["aaa"]}
    return {
        "whole": {},
        "stream": {"stream": True},
        "samples": {**sampled},
        "samples, stream": {**sampled, "stream": True},
        "text": {"prompt": "hello"},
        "max_tokens missing": {"max_tokens": None},
        "temperature missing": {"temperature": None},
        "seed negative": {"temperature": 1.0, "seed": -5},
        "stop id": {**says_a, "stop_token_ids": [a]},
        "stop id, stream": {**says_a, "stop_token_ids": [a], "stream": True},
        "stop id after min_tokens": {
            **says_a,
            "stop_token_ids": [a],
            "min_tokens": 3,
            "logit_bias": {a: 100.0, a + 1: 50.0},
        },
        "stop string": stop_string,
        "stop string, stream": {**stop_string, "stream": True},
        "stop string, included": {**stop_string, "include_stop_str_in_output": True},
        "stop string after min_tokens": {**stop_string, "min_tokens": 5},
        "logprobs 0": {"logprobs": 0},
        "logprobs 2": {"logprobs": 2},
        "logprobs 2, stream": {"logprobs": 2, "stream": True},
        "prompt_logprobs 0": {"prompt_logprobs": 0},
        "prompt_logprobs 2": {"prompt_logprobs": 2},
        "prompt_logprobs 1, stream": {"prompt_logprobs": 1, "stream": True},
        "truncated to 2": {"truncate_prompt_tokens": 2},
        "truncated to what fits": {"prompt": (40,) * 200, "truncate_prompt_tokens": -1},
        "bias 1000": {"logit_bias": {a: 1000.0}},
        "prompt one short of the context": {
            "prompt": (40,) * (CONTEXT - 1),
            "max_tokens": 1,
        },
        "answer beyond the context": {"max_tokens": CONTEXT},
        "request id missing": {"request_id": ""},
    }


def _forms() -> dict[str, Case]:
    """Answers of a form that leaves no choice but to end."""
    text = {"ignore_eos": False, "max_tokens": 20}
    return {
        "choice": {**text, "choice": {"choices": ["aaa"]}},
        "regex": {**text, "regex": "a{3}"},
        "grammar": {**text, "grammar": 'root ::= "aaa"'},
        "json_schema": {**text, "json_schema": '{"const": "a"}'},
        "json_object false": {"json_object": False},
        "regex malformed": {**text, "regex": "("},
        "grammar malformed": {**text, "grammar": "root ::= ("},
        "json_schema malformed": {**text, "json_schema": "{"},
        "choice of nothing": {**text, "choice": {"choices": []}},
    }


def _refused() -> dict[str, Case]:
    return {
        "prompt missing": {"prompt": None},
        "prompt empty": {"prompt": ()},
        "text empty": {"prompt": ""},
        "prompt of the context": {"prompt": (40,) * CONTEXT, "max_tokens": 1},
        "prompt too long": {"prompt": (40,) * (2 * CONTEXT)},
        "id outside the vocabulary": {"prompt": (40, VOCABULARY)},
        "id far outside": {"prompt": (40, 2**32 - 1)},
        "temperature -1": {"temperature": -1.0},
        "temperature nan": {"temperature": float("nan")},
        "temperature inf": {"temperature": float("inf")},
        "top_p 2": {"top_p": 2.0},
        "top_p -1": {"top_p": -1.0},
        "top_k 2**31": {"top_k": 2**31},
        "min_p 2": {"min_p": 2.0},
        "presence_penalty 3": {"presence_penalty": 3.0},
        "frequency_penalty nan": {"frequency_penalty": float("nan")},
        "repetition_penalty -1": {"repetition_penalty": -1.0},
        "max_tokens 0": {"max_tokens": 0},
        "min_tokens over max_tokens": {"min_tokens": 5},
        "n 100000": {"n": 100_000, "temperature": 1.0},
        "n 2, greedy": {"n": 2},
        "logprobs 100": {"logprobs": 100},
        "logprobs -2": {"logprobs": -2},
        "prompt_logprobs 100": {"prompt_logprobs": 100},
        "stop id outside the vocabulary": {"stop_token_ids": [VOCABULARY]},
        "stop string empty": {"stop": [""]},
        "bias outside the vocabulary": {"logit_bias": {VOCABULARY: 1.0}},
        "bias of a negative id": {"logit_bias": {-1: 1.0}},
        "data_parallel_rank 3": {"data_parallel_rank": 3},
        "truncated to 0": {"truncate_prompt_tokens": 0},
        "truncated to -2": {"truncate_prompt_tokens": -2},
    }
