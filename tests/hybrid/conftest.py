"""The engine that the tests of the offline API share."""

import pytest

from hybrid import LLM


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A tiny Llama from a GGUF file, converted into a cache of its own."""
    # Here, so that tests without a model do not wait for torch.
    from tests.backends.tiny_checkpoints import make_model, write_gguf  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("llm")
    write_gguf(folder / "tiny.gguf", make_model("llama"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRID_CACHE", str(folder / "cache"))
        return LLM(
            str(folder / "tiny.gguf"), dtype="float32", num_kv_blocks=64, num_threads=1
        )
