"""Measures engines: speed, latency, memory, and how well a model predicts a text.

Each engine runs in a process of its own, so that its memory is its own and its threads
disturb nobody; rounds of several engines are interleaved. Knows no executor.
"""

from .benchmark import Benchmark
from .engine_choice import EngineChoice
from .measurement import Measurement, Spread
from .perplexity import TextScore, score_text
from .report import Report
from .workload import Workload

__all__ = [
    "Benchmark",
    "EngineChoice",
    "Measurement",
    "Report",
    "Spread",
    "TextScore",
    "Workload",
    "score_text",
]
