"""TensorRT-LLM's attention operator without a GPU: refuses what it would misread."""

from tests.backends.standin_signatures import arguments_of, printed


class StandInAttention:
    """Called as the operator of one era is."""

    def __init__(self, era: str) -> None:
        self.arguments = arguments_of(era)
        self.__doc__ = printed(self.arguments)
