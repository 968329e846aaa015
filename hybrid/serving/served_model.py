"""What clients may know of the model that is served."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid.engine_builder import LoadedEngine

if TYPE_CHECKING:
    # Text is an extra: without it requests come as token ids.
    from hybrid.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Fixed from the start of the server to its end."""

    name: str
    """What clients call it."""
    path: Path | None
    """Its directory; ``None``: the executor runs without a model."""
    architecture: str
    vocab_size: int
    """Ids that can be drawn."""
    max_model_len: int
    """Most tokens of a request, prompt and answer together."""
    executor: str
    device: str
    dtype: str
    block_size: int
    num_blocks: int
    """Usable ones."""
    max_num_seqs: int
    tokenizer: "Tokenizer | None"
    """``None``: requests come as token ids, and answers go so."""

    @classmethod
    def of(cls, loaded: LoadedEngine, *, name: str | None = None) -> "ServedModel":
        """Describe an engine.

        Args:
            loaded: fresh from ``load_engine``.
            name: for clients; ``None``: as the engine's user named the model.
        """
        started, source, engine = loaded.started, loaded.source, loaded.engine
        return cls(
            name=name or started.model or started.executor,
            path=None if source is None else source.path,
            architecture=started.architecture,
            vocab_size=engine.input_processor.vocab_size,
            max_model_len=started.max_model_len,
            executor=started.executor,
            device=started.device,
            dtype=started.dtype,
            block_size=started.block_size,
            num_blocks=started.num_blocks,
            max_num_seqs=loaded.limits.max_num_seqs,
            tokenizer=engine.tokenizer,
        )
