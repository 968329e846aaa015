"""Reads a page of metrics by Prometheus' own parser."""

from collections.abc import Iterable

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from hybrid.serving.serving_metrics import ServingMetrics


class Page:
    """One scrape, by sample name."""

    def __init__(self, text: str) -> None:
        self.families: dict[str, Metric] = {
            family.name: family for family in text_string_to_metric_families(text)
        }
        self.samples = [s for family in self.families.values() for s in family.samples]

    @classmethod
    def of(cls, metrics: ServingMetrics) -> "Page":
        """What a scrape would see now."""
        return cls(generate_latest(metrics.registry).decode())

    def value(self, name: str, **labels: str) -> float:
        """The one sample of this name and these labels."""
        (sample,) = [
            sample
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sample.value

    def values(self, names: Iterable[str]) -> dict[str, float]:
        """Samples that need no label to be told apart."""
        return {name: self.value(name) for name in names}

    def counters(self) -> dict[tuple[str, ...], float]:
        """Everything that must never fall: counters, and counts within histograms."""
        return {
            (s.name, *sorted(s.labels.values())): s.value
            for family in self.families.values()
            if family.type in ("counter", "histogram")
            for s in family.samples
        }
