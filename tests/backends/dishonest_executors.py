"""Executors that declare, accept or leave behind what they should not."""

import threading
from dataclasses import replace
from typing import ClassVar

import numpy as np

from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.backends.interface import (
    Capabilities,
    ExecutorConfig,
    ModelInfo,
    ProgressCallback,
)
from hybrid.backends.null.executor import NullExecutor
from hybrid.bridge import KVLayout
from hybrid.scheduler import CheckpointError, ConfigError, StepPlan
from tests.backends.faulty_executors import Edits, Logits


class FalseDtype(Edits):
    """Declares bfloat16, and gives no numbers in it."""

    def capabilities(self) -> Capabilities:
        """Declare it."""
        return replace(super().capabilities(), dtypes=("float32", "bfloat16"))

    def change(self, plan: StepPlan, logits: Logits) -> Logits:
        """Fail in silence."""
        del plan
        return logits * np.float32("nan" if self._config.dtype == "bfloat16" else 1)


class FlatDtype(Edits):
    """Declares float16, and finds all ids equal in it."""

    def capabilities(self) -> Capabilities:
        """Declare it."""
        return replace(super().capabilities(), dtypes=("float32", "float16"))

    def change(self, plan: StepPlan, logits: Logits) -> Logits:
        """Underflow."""
        del plan
        return logits * np.float32(self._config.dtype != "float16")


class FalseDevice(NullExecutor):
    """Declares a second device that is not there."""

    def capabilities(self) -> Capabilities:
        """Declare it."""
        fast_dtypes = dict.fromkeys(("cpu", "npu"), ("float32",))
        return replace(
            super().capabilities(), devices=("cpu", "npu"), fast_dtypes=fast_dtypes
        )

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Look for it."""
        if config.device != "cpu":
            raise ConfigError(f"there is no {config.device}")
        return super().load(model, config, progress)


class FalseBlockSize(NullExecutor):
    """Declares a block size that it cannot do."""

    def allocate_kv(self, num_blocks: int) -> KVLayout:
        """Refuse late."""
        if self._config.block_size == 8:
            raise ConfigError("blocks of 8 tokens cannot be had")
        return super().allocate_kv(num_blocks)


class SmallPool(NullExecutor):
    """Says that its pool is smaller than it was asked to be."""

    def allocate_kv(self, num_blocks: int) -> KVLayout:
        """Take one block off."""
        return replace(super().allocate_kv(num_blocks), num_blocks=num_blocks - 1)


class Contradictory(NullExecutor):
    """Is fast in what it cannot do."""

    def capabilities(self) -> Capabilities:
        """Declare it."""
        return replace(super().capabilities(), fast_dtypes={"cpu": ("float16",)})


class Fickle(NullExecutor):
    """Declares less once it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self._is_loaded = False

    def capabilities(self) -> Capabilities:
        """Change one's mind."""
        return replace(super().capabilities(), block_copy=not self._is_loaded)

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Remember it."""
        self._is_loaded = True
        return super().load(model, config, progress)


class AnyOption(NullExecutor):
    """Takes options that it does not know."""

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Drop them all."""
        return super().load(model, replace(config, options={}), progress)


class Overdone(NullExecutor):
    """Loads more than there is."""

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Count past the end."""
        if progress is not None:
            progress("weights", 3, 2)
        return super().load(model, config, progress)


class ClosesOnce(NullExecutor):
    """Cannot be closed twice."""

    def __init__(self) -> None:
        super().__init__()
        self._parts = ["part"]

    def close(self) -> None:
        """Take apart what is together."""
        self._parts.pop()
        super().close()


class Held(NullExecutor):
    """Is never let go."""

    everyone: ClassVar[list[NullExecutor]] = []

    def __init__(self) -> None:
        super().__init__()
        self.everyone.append(self)


class Threaded(NullExecutor):
    """Leaves a thread behind."""

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Start one that waits for what never comes."""
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().load(model, config, progress)


class AnyModel(NullExecutor):
    """Needs a model, and fails as its libraries do, or not at all, where it is none."""

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Let an error of another kind through."""
        try:
            return super().load(model, config, progress)
        except CheckpointError as error:
            raise OSError(str(error)) from error
