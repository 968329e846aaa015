"""Copies that are made late, as a GPU may make them: what a missing wait looks like.

copiers = LaggingCopiers()
monkeypatch.setattr(sent_array, "copier_for", copiers.new)
...  # steps, whose copies wait for whoever waits for them
copiers.catch_up()
"""

from dataclasses import dataclass, field

import torch


@dataclass
class LaggingCopier:
    """Copies when it is waited for, and not before."""

    under_way: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = field(
        default_factory=list
    )
    """Target, source, and what the source held when the copy was asked for."""
    num_marked: int = 0

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Remember it."""
        assert target.is_contiguous(), "copied through memory of its own"
        assert source.is_contiguous(), "copied through memory that is not pinned"
        self.under_way.append((target, source, source.clone()))

    def mark(self) -> None:
        """What is under way now will be waited for."""
        self.num_marked = len(self.under_way)

    def wait(self) -> None:
        """Make what was marked."""
        self._make(self.num_marked)

    def catch_up(self) -> None:
        """Make all of them, as the device does in the end."""
        self._make(len(self.under_way))

    def _make(self, count: int) -> None:
        for target, source, asked in self.under_way[:count]:
            assert torch.equal(source, asked), "written while a copy was under way"
            target.copy_(source)
        del self.under_way[:count]
        self.num_marked = max(0, self.num_marked - count)


@dataclass
class UnawaitedCopier(LaggingCopier):
    """What ``SentArray`` would have if it did not wait."""

    def wait(self) -> None:
        """Do not."""


@dataclass
class LaggingCopiers:
    """One for each array, of one kind."""

    kind: type[LaggingCopier] = LaggingCopier
    made: list[LaggingCopier] = field(default_factory=list)

    def new(self, device: torch.device) -> LaggingCopier:
        """Stand in for ``copier_for``."""
        del device
        self.made.append(self.kind())
        return self.made[-1]

    def catch_up(self) -> None:
        """Let the device come to the end."""
        for copier in self.made:
            copier.catch_up()
