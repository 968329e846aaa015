"""A server takes as many connections as its supervisor lets it."""

import resource
from typing import Any
from unittest.mock import Mock

import pytest

from hybrid.serving.file_descriptors import raise_descriptor_limit

NOFILE = resource.RLIMIT_NOFILE


@pytest.mark.parametrize(("soft", "calls"), [(1024, [(4096, 4096)]), (4096, [])])
def test_the_soft_limit_becomes_the_hard_one(
    monkeypatch: pytest.MonkeyPatch, soft: int, calls: list[Any]
) -> None:
    """And is left alone where it is."""
    setter = Mock()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, 4096))
    monkeypatch.setattr(resource, "setrlimit", setter)
    raise_descriptor_limit()
    assert [call.args for call in setter.mock_calls] == [(NOFILE, c) for c in calls]


def test_a_kernel_that_refuses_does_not_end_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fewer connections are better than none."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, -1))
    monkeypatch.setattr(resource, "setrlimit", Mock(side_effect=ValueError))
    raise_descriptor_limit()
