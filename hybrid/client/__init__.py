"""A client of ``hybrid serve``: text or messages in, answers out, over gRPC.

Needs the extra ``grpc``, and ``torch`` for text; ids alone do without. Knows the
protocol ``vllm.grpc.engine.VllmEngine`` and nothing of who serves it.
"""

from .answer_part import AnswerPart, TokenLogprob
from .async_client import AsyncHybridClient
from .client_options import ClientOptions, TlsOptions
from .retry import RetryPolicy
from .rpc_failed import RpcFailed
from .server_facts import ModelInfo, ServerHealth, ServerLoad
from .sync_client import HybridClient

__all__ = [
    "AnswerPart",
    "AsyncHybridClient",
    "ClientOptions",
    "HybridClient",
    "ModelInfo",
    "RetryPolicy",
    "RpcFailed",
    "ServerHealth",
    "ServerLoad",
    "TlsOptions",
    "TokenLogprob",
]
