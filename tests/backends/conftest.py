"""What tests of compiled engines share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.standin_session import Seen, installed_runtime


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama's Hugging Face directory; nobody writes there."""
    # Here, so that tests without a model do not wait for transformers.
    from hybrid.testing.models import write_tiny_model  # noqa: PLC0415

    return write_tiny_model(tmp_path_factory.mktemp("weights"), "llama")


@pytest.fixture
def seen() -> Iterator[Seen]:
    """TensorRT-LLM 1.2.1, as the stand-in has it."""
    with installed_runtime() as what:
        yield what
