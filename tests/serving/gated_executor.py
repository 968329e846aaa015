"""An executor for the tests of a server that runs as a process of its own.

It is led by files in a folder.
"""

import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from hybrid.api import (
    Capabilities,
    ExecutorConfig,
    ForwardResult,
    ModelInfo,
    ModelSource,
    ProgressCallback,
    StepPlan,
)
from hybrid.backends.null.executor import CAPABILITIES, NullExecutor

PATIENCE_S = 60.0
"""A gate that nobody opens is a failure, no hang."""


class GatedExecutor(NullExecutor):
    """Led by files in the option ``folder``.

    While ``hold`` exists a step lasts, and burns a core; ``hold-load`` does the same to
    loading; with ``die`` a step raises. With ``answer`` it says that file's text and
    then draws the model's own end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path()
        self._model: Path | None = None

    def capabilities(self) -> Capabilities:
        """The null executor's."""
        return replace(CAPABILITIES, name="gated", description="led by files")

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Take its own options, leave the rest to the null executor."""
        options = dict(config.options)
        self._folder = Path(options.pop("folder"))
        self._model = None if model is None else model.path
        self._wait_at(self._folder / "hold-load")
        return super().load(model, replace(config, options=options), progress)

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Wait at the gate, perhaps die, then run the plan."""
        self._wait_at(self._folder / "hold")
        if (self._folder / "die").exists():
            raise RuntimeError("told to die")
        result = super().execute(plan)
        if (self._folder / "answer").exists():
            assert self._model is not None
            text = (self._folder / "answer").read_text("utf-8")
            self._say(_encode(self._model, text), plan, np.from_dlpack(result.logits))
        return result

    @staticmethod
    def _say(ids: list[int], plan: StepPlan, logits: np.ndarray) -> None:
        """Raise the logit of the answer's next token, in place."""
        row = 0
        for entry in plan.scheduled:
            row += entry.num_logits_rows
            if entry.num_logits_rows:
                place = entry.num_computed_tokens + len(entry.token_ids)
                place -= len(entry.request.prompt_token_ids)
                logits[row - 1, ids[min(place, len(ids) - 1)]] = 100.0

    @staticmethod
    def _wait_at(gate: Path) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while gate.exists():
            assert time.monotonic() < end_s, f"nobody removed {gate.name}"
            sum(range(10_000))


@cache
def _encode(model: Path, text: str) -> list[int]:
    import tokenizers  # noqa: PLC0415 - an extra

    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(text + "</s>").ids
    return ids
