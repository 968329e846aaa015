"""What came out of a step: everything that does not fit the plan is refused."""

from dataclasses import replace

import numpy as np
import pytest

from hybrid.backends.interface import ForwardResult
from hybrid.backends.null.executor import CAPABILITIES
from hybrid.result_check import ResultCheck
from hybrid.scheduler.errors import ExecutorFailed
from tests.hybrid.sampler_stand import make_entry, make_plan, make_request

LOGITS = ResultCheck(CAPABILITIES, 3, 2)
TOKENS = ResultCheck(replace(CAPABILITIES, returns_logits=False), 3, 9)


@pytest.mark.parametrize(
    "logits",
    [
        np.zeros((2, 3), np.float32),
        np.zeros((1, 2), np.float32),
        np.zeros(3, np.float32),
        np.zeros((1, 3), np.float64),
        None,
    ],
)
def test_logits_that_do_not_fit_the_plan_are_refused(
    logits: np.ndarray | None,
) -> None:
    """Wrong rows, columns, dtype or nothing at all."""
    plan = make_plan(make_entry(make_request()))
    with pytest.raises(ExecutorFailed, match="it returned"):
        LOGITS.run(plan, ForwardResult(logits=logits))


def test_logits_that_fit_pass_as_they_are() -> None:
    """Every column that the model has, one row for each that is wanted; or none."""
    result = ForwardResult(logits=np.zeros((1, 3), np.float32))
    plan = make_plan(make_entry(make_request()))
    assert LOGITS.run(plan, result) is result
    empty = make_plan(make_entry(make_request(), num_samples=0, num_logits_rows=0))
    assert LOGITS.run(empty, ForwardResult()) == ForwardResult()


@pytest.mark.parametrize("tokens", [((1,),), ((1, 2), ()), ((), ()), ((9,), ())])
def test_tokens_that_do_not_fit_the_plan_are_refused(
    tokens: tuple[tuple[int, ...], ...],
) -> None:
    """Too few or too many, for the plan or for an entry, or no id."""
    one, two = make_request("a"), make_request("b")
    plan = make_plan(make_entry(one), make_entry(two, num_samples=0))
    with pytest.raises(ExecutorFailed, match="sampled"):
        TOKENS.run(plan, ForwardResult(sampled_token_ids=tokens))


@pytest.mark.parametrize("likeliest", [(), (1, 1), (3,), (-2,), (1.0,), (np.int64(1),)])
def test_likeliest_ids_that_do_not_fit_the_rows_are_refused(
    likeliest: tuple[int, ...],
) -> None:
    """Too few, too many, or what is neither a column nor the word for none."""
    plan = make_plan(make_entry(make_request()))
    logits = np.zeros((1, 3), np.float32)
    with pytest.raises(ExecutorFailed, match="likeliest"):
        LOGITS.run(plan, ForwardResult(logits=logits, likeliest_ids=likeliest))


def test_likeliest_ids_do_without_logits_where_the_plan_says_so() -> None:
    """Nowhere else; and those that cannot be drawn are known."""
    plan = make_plan(make_entry(make_request()))
    result = ForwardResult(likeliest_ids=(1,))
    with pytest.raises(ExecutorFailed, match="no logits, 1 rows wanted"):
        LOGITS.run(plan, result)
    plan = replace(plan, needs_logits=False)
    assert LOGITS.run(plan, result) is result
    assert LOGITS.can_draw(result)
    for uncertain in (-1, 2):
        assert not LOGITS.can_draw(ForwardResult(likeliest_ids=(1, uncertain)))
    with pytest.raises(ExecutorFailed, match="no logits, 1 rows wanted"):
        LOGITS.run(plan, ForwardResult())
    with pytest.raises(ExecutorFailed, match="likeliest"):
        LOGITS.run(plan, ForwardResult(likeliest_ids=(1, 1)))


@pytest.mark.parametrize("likeliest", [(2,), (-1,), memoryview(np.array([2]))])
def test_likeliest_ids_that_fit_pass(likeliest: tuple[int, ...]) -> None:
    """Any column, also one that no tokenizer knows, or none; any sequence of them."""
    plan = make_plan(make_entry(make_request()))
    result = ForwardResult(logits=np.zeros((1, 3), np.float32), likeliest_ids=likeliest)
    assert LOGITS.run(plan, result) is result
