"""Tiny models, written once."""

from pathlib import Path

import pytest
from openvino_stand import load

from hybrid.testing import write_tiny_model


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory: a Llama of three layers."""
    return write_tiny_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory: a Mistral that sees 11 tokens back."""
    return write_tiny_model(tmp_path_factory.mktemp("mistral"), "mistral")


@pytest.fixture(scope="session")
def llama_ir(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same Llama, converted: tests that are not about conversion start here."""
    cache = tmp_path_factory.mktemp("converted")
    load(llama, cache_dir=cache)
    (directory,) = cache.iterdir()
    return directory
