"""What each declared sampling field must do to the answers of who samples itself.

Nothing is known of the distribution but its likeliest ids, so each field is set to
where it leaves no other answer, or must show in one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

from hybrid.scheduler import SamplingParams

from .bench import Bench
from .engine_run import ids_of
from .executor_case import ExecutorCase
from .workload import GREEDY, NUM_TOKENS, WILD, TokenIds

NUM_MIN_TOKENS: Final = 4
MAX_PENALISED: Final = 64
"""Tokens of an answer in which a penalty has to show."""


class SamplingFieldTests(ExecutorCase):
    """Of who returns no logits; the engine samples from those of others."""

    def test_a_declared_sampling_field_is_honoured(
        self, bench: Bench, sampling_field: str
    ) -> None:
        """It shows in the answers, as ``SamplingParams`` says."""
        if sampling_field not in PROPERTIES:
            pytest.skip(f"token ids alone do not show {sampling_field}")
        PROPERTIES[sampling_field](bench)


def _changed(params: SamplingParams, fields: Mapping[str, Any]) -> SamplingParams:
    return replace(params, **fields)


def _run(bench: Bench, fields: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Answer each prompt greedily, with fields of its own."""
    params = [_changed(GREEDY, each) for each in fields]
    return ids_of(bench.run(bench.workload.prompts, params))


def _greedy(bench: Bench) -> list[TokenIds]:
    return [answer.token_ids for answer in bench.expected(bench.workload.prompts)]


def _check_temperature(bench: Bench) -> None:
    """Heat leads away from the likeliest ids, and its lack back to them."""
    prompts = bench.workload.prompts
    hot = list(map(tuple, ids_of(bench.run(prompts, WILD))))
    assert hot != _greedy(bench), f"{bench.label}: temperature 20 answers as 0 does"
    cold = bench.run(prompts, replace(GREEDY, temperature=1e-6))
    bench.check(prompts, cold, "temperature 1e-6")


def _check_cut(bench: Bench, field: str, value: float) -> None:
    """A cut that leaves one id makes the hottest draw greedy."""
    bench.require_sampling("temperature")
    prompts, cut = bench.workload.prompts, {field: value}
    outputs = bench.run(prompts, _changed(WILD, cut))
    bench.check(prompts, outputs, f"temperature 20, {field} {value}")


def _check_seed(bench: Bench) -> None:
    bench.require_sampling("temperature")
    bench.require_exact()
    first, again, other = (
        ids_of(bench.run(bench.workload.prompts, replace(WILD, seed=seed)))
        for seed in (1, 1, 2)
    )
    assert first == again, f"{bench.label}: seed 1 draws otherwise each time"
    assert first != other, f"{bench.label}: seeds 1 and 2 draw the same"


def _check_n(bench: Bench) -> None:
    bench.require_sampling("temperature")
    outputs = bench.run(bench.workload.prompts, replace(WILD, n=2))
    pairs = [[sample.token_ids for sample in output.outputs] for output in outputs]
    assert all(len(pair) == 2 for pair in pairs), f"{bench.label}: samples are missing"
    assert any(one != other for one, other in pairs), f"{bench.label}: n repeats one"


def _check_logit_bias(bench: Bench) -> None:
    """Where an id leads by less than 100, a bias of -100 keeps it away."""
    answers = bench.expected(bench.workload.prompts)
    got = _run(bench, [{"logit_bias": {a.token_ids[0]: -100.0}} for a in answers])
    for index, (answer, ids) in enumerate(zip(answers, got, strict=True)):
        is_far = 100.0 < answer.margins[0] + bench.tolerance < float("inf")
        assert is_far or ids[0] != answer.token_ids[0], (
            f"{bench.label}: prompt {index} begins with {ids[0]} despite its logit_bias"
        )


def _check_allowed_token_ids(bench: Bench) -> None:
    """Two ids are allowed, neither of them what greedy begins with."""
    vocab_size = bench.loaded.info.vocab_size
    allowed = [
        tuple((ids[0] + step) % vocab_size for step in (1, 2)) for ids in _greedy(bench)
    ]
    got = _run(bench, [{"allowed_token_ids": ids} for ids in allowed])
    for index, (ids, some) in enumerate(zip(got, allowed, strict=True)):
        others = set(ids) - set(some)
        assert not others, f"{bench.label}: prompt {index}: {others} are not allowed"


def _check_min_tokens(bench: Bench) -> None:
    """What greedy begins with is a stop, and not to be drawn for a while."""
    stops = [ids[0] for ids in _greedy(bench)]
    got = _run(
        bench,
        [{"stop_token_ids": (stop,), "min_tokens": NUM_MIN_TOKENS} for stop in stops],
    )
    for index, (ids, stop) in enumerate(zip(got, stops, strict=True)):
        is_kept = len(ids) >= NUM_MIN_TOKENS and stop not in ids[:NUM_MIN_TOKENS]
        assert is_kept, (
            f"{bench.label}: prompt {index}: min_tokens {NUM_MIN_TOKENS}, stop {stop}: "
            f"got {ids}"
        )


def _check_stop_token_ids(bench: Bench) -> None:
    """A stop is drawn as any other id; the answer ends with it."""
    greedy = _greedy(bench)
    stops = [ids[2] for ids in greedy]
    got = _run(bench, [{"stop_token_ids": (stop,)} for stop in stops])
    assert any(ids[-1] == stop for ids, stop in zip(got, stops, strict=True)), (
        f"{bench.label}: no answer ends with its stop, though greedy meets them all"
    )
    for index, (ids, stop) in enumerate(zip(got, stops, strict=True)):
        is_end = ids[-1] == stop or len(ids) == NUM_TOKENS
        is_right = is_end and stop not in ids[:-1]
        assert is_right, f"{bench.label}: prompt {index}: stop {stop}: got {ids}"


def _check_penalty(bench: Bench, field: str, reward: float, penalty: float) -> None:
    """Repetition is rewarded, then penalised: where answers part, the first repeats.

    Up to there both have the same logits and the same past, and what only a reward
    makes the highest has been in that past.
    """
    bench.require_exact()
    prompts = bench.workload.prompts
    room = bench.loaded.info.max_model_len - max(map(len, prompts))
    params = replace(GREEDY, max_tokens=min(MAX_PENALISED, room))
    more, less = (
        ids_of(bench.run(prompts, _changed(params, {field: value})))
        for value in (reward, penalty)
    )
    assert more != less, f"{bench.label}: {field} {reward} and {penalty} answer alike"
    for index, (prompt, *both) in enumerate(zip(prompts, more, less, strict=True)):
        pairs = zip(*both, strict=True)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if place is None:
            continue
        past = both[0][:place]
        if field == "repetition_penalty":
            past = [*prompt, *past]
        assert both[0][place] in past, (
            f"{bench.label}: prompt {index}, output position {place}: {field} {reward} "
            f"chose {both[0][place]}, which has not been there, over {both[1][place]}"
        )


PROPERTIES: Final[Mapping[str, Callable[[Bench], None]]] = {
    "n": _check_n,
    "temperature": _check_temperature,
    "seed": _check_seed,
    "top_k": partial(_check_cut, field="top_k", value=1),
    "top_p": partial(_check_cut, field="top_p", value=1e-6),
    "min_p": partial(_check_cut, field="min_p", value=1.0),
    "presence_penalty": partial(
        _check_penalty, field="presence_penalty", reward=-2.0, penalty=2.0
    ),
    "frequency_penalty": partial(
        _check_penalty, field="frequency_penalty", reward=-2.0, penalty=2.0
    ),
    "repetition_penalty": partial(
        _check_penalty, field="repetition_penalty", reward=0.01, penalty=100.0
    ),
    "logit_bias": _check_logit_bias,
    "allowed_token_ids": _check_allowed_token_ids,
    "min_tokens": _check_min_tokens,
    "stop_token_ids": _check_stop_token_ids,
}
"""By field. Not here: ``bad_words``, for the kit's models have no text."""
