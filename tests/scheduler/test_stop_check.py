"""When tokens end a sequence: end ids, min_tokens, limits."""

import pytest

from hybrid.scheduler import FinishReason, PagedScheduler, SequenceUpdate
from tests.scheduler.factories import EOS, make_request, make_scheduler


def run_with(
    scheduler: PagedScheduler, token_ids: list[int]
) -> tuple[list[int], SequenceUpdate]:
    """Feed drawn tokens until the sequence ends; its outputs and last update."""
    outputs: list[int] = []
    for token_id in token_ids:
        plan = scheduler.schedule()
        (update,) = scheduler.update(plan, [(token_id,)])
        outputs += update.new_token_ids
        if update.finish_reason is not None:
            assert not scheduler.has_unfinished()
            return outputs, update
    raise AssertionError("the sequence never ended")


def test_the_models_end_is_part_of_the_answer() -> None:
    """Finish "stop", no stop_reason, and the id is in the tokens."""
    scheduler = make_scheduler()
    scheduler.add(make_request())
    outputs, update = run_with(scheduler, [7, EOS])
    assert outputs == [7, EOS]
    assert (update.finish_reason, update.stop_reason) == (FinishReason.STOP, None)


def test_any_of_several_ends_counts() -> None:
    """All of the model's end ids end an answer."""
    scheduler = make_scheduler()
    scheduler.add(make_request(eos_token_ids=(3, 4)))
    assert run_with(scheduler, [7, 4])[1].finish_reason is FinishReason.STOP


def test_stop_token_ids_add_to_the_models_end_and_name_themselves() -> None:
    """stop_reason is the id; the model's own end still works beside it."""
    for token_id, reason in ((9, 9), (EOS, None)):
        scheduler = make_scheduler()
        scheduler.add(make_request(stop_token_ids=[8, 9]))
        outputs, update = run_with(scheduler, [7, token_id])
        assert outputs == [7, token_id]
        assert update.finish_reason is FinishReason.STOP
        assert update.stop_reason == reason


def test_ignore_eos_goes_on_but_not_past_a_stop_token() -> None:
    """An id that is both is then a stop token."""
    scheduler = make_scheduler()
    scheduler.add(make_request(ignore_eos=True, max_tokens=3))
    outputs, update = run_with(scheduler, [EOS, EOS, EOS])
    assert (len(outputs), update.finish_reason) == (3, FinishReason.LENGTH)
    scheduler.add(make_request(ignore_eos=True, stop_token_ids=[EOS]))
    outputs, update = run_with(scheduler, [7, EOS])
    assert (update.finish_reason, update.stop_reason) == (FinishReason.STOP, EOS)


@pytest.mark.parametrize("min_tokens", [0, 1, 4, 6])
def test_min_tokens_counts_outputs_and_not_the_prompt(min_tokens: int) -> None:
    """Even a model that says nothing but "end" gives min_tokens ids before the end."""
    scheduler = make_scheduler()
    scheduler.add(make_request(prompt=9, min_tokens=min_tokens, max_tokens=7))
    outputs, update = run_with(scheduler, [EOS] * 7)
    assert len(outputs) == min_tokens + 1
    assert update.finish_reason is FinishReason.STOP


def test_min_tokens_equal_to_max_tokens_ends_by_length() -> None:
    """There is no place left for an end."""
    scheduler = make_scheduler()
    scheduler.add(make_request(min_tokens=4, max_tokens=4))
    outputs, update = run_with(scheduler, [EOS] * 9)
    assert len(outputs) == 4
    assert update.finish_reason is FinishReason.LENGTH


def test_a_complete_answer_of_full_length_says_stop() -> None:
    """The end id in the last place goes before the limit."""
    scheduler = make_scheduler()
    scheduler.add(make_request(max_tokens=2))
    assert run_with(scheduler, [7, EOS])[1].finish_reason is FinishReason.STOP


def test_the_last_id_of_a_vocabulary_is_no_end() -> None:
    """Nothing stands for "no end id" that a real id could meet."""
    scheduler = make_scheduler()
    scheduler.add(make_request(ignore_eos=True, max_tokens=2, eos_token_ids=()))
    outputs, update = run_with(scheduler, [49151, 49151])
    assert len(outputs) == 2
    assert update.finish_reason is FinishReason.LENGTH
