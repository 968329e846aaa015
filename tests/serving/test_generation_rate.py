"""Tokens per second between two looks at a counter."""

import pytest

from hybrid.serving.generation_rate import GenerationRate


def test_the_rate_is_that_since_the_last_look() -> None:
    """The first look has nothing to compare with."""
    rate = GenerationRate()
    assert rate.look(1000, 50.0) == 0.0
    assert rate.look(1030, 60.0) == pytest.approx(3.0)
    assert rate.look(1030, 70.0) == 0.0


def test_looks_in_quick_succession_see_one_rate() -> None:
    """Two who look at the same time neither divide by nothing nor disagree."""
    rate = GenerationRate()
    rate.look(0, 0.0)
    assert rate.look(20, 2.0) == pytest.approx(10.0)
    assert rate.look(25, 2.0) == pytest.approx(10.0)
    assert rate.look(26, 2.9) == pytest.approx(10.0)
    assert rate.look(26, 4.0) == pytest.approx(3.0)
