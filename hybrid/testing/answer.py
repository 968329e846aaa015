"""What an executor should have said, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """The right continuation of one prompt."""

    token_ids: tuple[int, ...]
    margins: tuple[float, ...]
    """At each position, the highest logit less the second highest."""


def check_answers(
    expected: Sequence[Answer],
    got: Sequence[Sequence[int]],
    *,
    tolerance: float,
    setting: str,
) -> None:
    """Assert that the tokens are right wherever the margin exceeds the tolerance.

    Args:
        expected: one answer per prompt.
        got: the token ids that came instead.
        tolerance: logits may be off by half of it. Where a margin is smaller another
            id is no fault; what follows it continues another text, and is not compared.
        setting: what was run, for the message.

    Raises:
        AssertionError: names prompt, position and both ids; or so little could be
            compared that nothing is shown.
    """
    assert len(got) == len(expected), (
        f"{setting}: {len(got)} answers to {len(expected)} prompts"
    )
    num_compared = 0
    for index, (answer, ids) in enumerate(zip(expected, got, strict=True)):
        num_compared += _num_equal(index, answer, ids, tolerance, setting)
    num_tokens = sum(len(answer.token_ids) for answer in expected)
    assert 2 * num_compared >= num_tokens, (
        f"{setting}: with a tolerance of {tolerance} only {num_compared} of "
        f"{num_tokens} tokens could be compared; lower it, or sharpen the logits"
    )


def _num_equal(
    index: int, answer: Answer, ids: Sequence[int], tolerance: float, setting: str
) -> int:
    """How many tokens were compared."""
    assert len(ids) == len(answer.token_ids), (
        f"{setting}: prompt {index} got {len(ids)} tokens {list(ids)}, "
        f"wanted {len(answer.token_ids)}"
    )
    for position, (wanted, found) in enumerate(zip(answer.token_ids, ids, strict=True)):
        if wanted == found:
            continue
        margin = answer.margins[position]
        assert margin <= tolerance, (
            f"{setting}: prompt {index}, output position {position}: got id {found}, "
            f"expected {wanted} (its logit leads by {margin:.3g}, tolerance "
            f"{tolerance:.3g})\n  got      {list(ids)}\n"
            f"  expected {list(answer.token_ids)}"
        )
        return position
    return len(ids)
