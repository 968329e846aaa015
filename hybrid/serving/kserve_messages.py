"""The messages of ``inference.GRPCInferenceService``, made here, known here alone.

Several distributions carry generated copies of these messages, and no two of them go
into one process: protobuf's default pool takes each name once. A pool of our own
clashes with none of them, whatever else a process imports; on the wire all are equal.
Source: the Open Inference Protocol, and Triton's ``grpc_service.proto`` for the stream.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "inference"
SERVICE: Final = f"{PACKAGE}.GRPCInferenceService"

_MESSAGES: Final = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready",
    "ModelReadyRequest": "string name, string version",
    "ModelReadyResponse": "bool ready",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name, string version, string* extensions",
    "ModelMetadataRequest": "string name, string version",
    "TensorMetadata": "string name, string datatype, int64* shape",
    "ModelMetadataResponse": (
        "string name, string* versions, string platform, TensorMetadata* inputs, "
        "TensorMetadata* outputs"
    ),
    "InferParameter": (
        "bool| bool_param, int64| int64_param, string| string_param, "
        "double| double_param, uint64| uint64_param"
    ),
    "InferTensorContents": (
        "bool* bool_contents, int32* int_contents, int64* int64_contents, "
        "uint32* uint_contents, uint64* uint64_contents, float* fp32_contents, "
        "double* fp64_contents, bytes* bytes_contents"
    ),
    "InferInputTensor": (
        "string name, string datatype, int64* shape, InferParameter% parameters, "
        "InferTensorContents contents"
    ),
    "InferRequestedOutputTensor": "string name, InferParameter% parameters",
    "ModelInferRequest": (
        "string model_name, string model_version, string id, "
        "InferParameter% parameters, InferInputTensor* inputs, "
        "InferRequestedOutputTensor* outputs, bytes* raw_input_contents"
    ),
    "InferOutputTensor": (
        "string name, string datatype, int64* shape, InferParameter% parameters, "
        "InferTensorContents contents"
    ),
    "ModelInferResponse": (
        "string model_name, string model_version, string id, "
        "InferParameter% parameters, InferOutputTensor* outputs, "
        "bytes* raw_output_contents"
    ),
    "ModelStreamInferResponse": (
        "string error_message, ModelInferResponse infer_response"
    ),
}
"""Fields in the order of their numbers, which begin at 1.

``*``: repeated; ``%``: a map from strings; ``|``: one of a group. Names within other
messages are not on the wire, so none is nested here but what maps need.
"""

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_ONE_OF: Final = "parameter_choice"


def _add_field(message: Any, kind: str, name: str) -> None:
    """Give a message its next field."""
    field = message.field.add(name=name, number=len(message.field) + 1)
    is_list = kind.endswith(("*", "%"))
    field.label = _FIELD.LABEL_REPEATED if is_list else _FIELD.LABEL_OPTIONAL
    if kind.endswith("|"):
        field.oneof_index = 0
    plain = kind.rstrip("*%|")
    if kind.endswith("%"):
        plain = f"{message.name}.{_add_entry(message, plain)}"
    if f"TYPE_{plain.upper()}" in _FIELD.Type.keys():  # noqa: SIM118 - no dict
        field.type = _FIELD.Type.Value(f"TYPE_{plain.upper()}")
    else:
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{plain}"


def _add_entry(message: Any, kind: str) -> str:
    """Add the message that a map is a list of; return its name."""
    entry = message.nested_type.add(name="ParametersEntry")
    entry.options.map_entry = True
    _add_field(entry, "string", "key")
    _add_field(entry, kind, "value")
    name: str = entry.name
    return name


def _make_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="open_inference.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if "|" in fields:
            message.oneof_decl.add(name=_ONE_OF)
        for field in filter(None, fields.split(", ")):
            _add_field(message, *field.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
        )
        for name in _MESSAGES
    }


MESSAGES: Final = _make_classes()
"""The classes by name."""
