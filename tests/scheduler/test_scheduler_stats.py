"""Gauges and counters."""

from tests.scheduler.driver import Driver
from tests.scheduler.factories import make_request, make_scheduler


def test_slots_count_shared_blocks_once() -> None:
    """Six tokens shared by three samples use six of eight slots."""
    driver = Driver()
    driver.add(make_request(prompt=6, n=3, max_tokens=4))
    driver.step()
    stats = driver.scheduler.stats()
    assert (stats.num_allocated_slots, stats.num_used_slots) == (8, 6)
    driver.step()
    stats = driver.scheduler.stats()
    # One full block shared, three private tails of three tokens.
    assert (stats.num_allocated_slots, stats.num_used_slots) == (16, 13)
    driver.run()


def test_slots_of_an_unfinished_step_are_allocated_and_not_used() -> None:
    """A token counts as held once its step is committed."""
    scheduler = make_scheduler()
    scheduler.add(make_request(prompt=6))
    plan = scheduler.schedule()
    stats = scheduler.stats()
    assert (stats.num_allocated_slots, stats.num_used_slots) == (8, 0)
    scheduler.update(plan, [(1,)])
    assert scheduler.stats().num_used_slots == 6


def test_gauges_and_counters() -> None:
    """Waiting, running, free, steps and tokens."""
    driver = Driver(max_num_seqs=1)
    for request_id in "ab":
        driver.add(make_request(request_id, 5, max_tokens=2))
    driver.step()
    stats = driver.scheduler.stats()
    assert (stats.num_waiting, stats.num_running) == (1, 1)
    assert (stats.num_total_blocks, stats.num_free_blocks) == (8, 6)
    driver.run()
    stats = driver.scheduler.stats()
    assert (stats.num_steps, stats.num_scheduled_tokens) == (4, 12)
    assert stats.num_preemptions == 0
    assert stats.num_cached_idle_blocks == 2


def test_waste_stays_under_one_block_a_sequence() -> None:
    """Blocks are taken when a token needs them, not before."""
    driver = Driver(num_blocks=40, max_model_len=64, max_num_seqs=8)
    for index, request_id in enumerate("abcdefgh"):
        driver.add(make_request(request_id, 3 + index, max_tokens=6 + index))
    while driver.scheduler.has_unfinished():
        driver.step()
        stats = driver.scheduler.stats()
        waste = stats.num_allocated_slots - stats.num_used_slots
        assert waste <= stats.num_running * 3
