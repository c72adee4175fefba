"""Reads and writes tf.train.Example messages with protobuf alone, without TensorFlow.

The module has three users. The pre-flight checks read the sizes of the first record before TensorFlow starts. The
preparation's workers write records. The input pipeline validates each record before TensorFlow's parser sees it: the
parser copies an invalid record into its error message, and bytes that are not UTF-8 cause a second error there.

The message type has the same fields as TensorFlow's example.proto. It is declared in a separate descriptor pool, so it
does not conflict with TensorFlow's declaration.
"""

from collections.abc import Mapping, Sequence

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from tftrain.files.errors import DataError

_SCHEMA = """
name: "tftrain/example.proto" package: "tftrain" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".tftrain.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".tftrain.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".tftrain.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 type_name: ".tftrain.Features.FeatureEntry" label: LABEL_REPEATED }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".tftrain.Feature" }
  }
}
message_type { name: "Example" field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".tftrain.Features" } }
"""
_pool = descriptor_pool.DescriptorPool()
_pool.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
_Example = message_factory.GetMessageClass(_pool.FindMessageTypeByName("tftrain.Example"))
# The names that tf-models' version 2 gives to features of the original BERT.
_ORIGINAL_NAMES = {"input_word_ids": "input_ids", "input_type_ids": "segment_ids"}


def encode(features: Mapping[str, Sequence[int] | Sequence[float]]) -> bytes:
    """Returns a serialized tf.train.Example. Equal features give equal bytes.

    A sequence of int becomes an int64 list, one of float a float list.
    """
    example = _Example()
    for name, values in features.items():
        kind = "float_list" if len(values) and isinstance(values[0], float) else "int64_list"
        getattr(example.features.feature[name], kind).value.extend(values)
    return example.SerializeToString(deterministic=True)


def decode(payload: bytes, where: str) -> dict[str, list]:
    """Returns the features of a serialized tf.train.Example, by their original names; `where` is its place for errors.

    Raises:
        DataError: the record is not a tf.train.Example.
    """
    values = {}
    for name, feature in _parse(payload, where).features.feature.items():
        kind = feature.WhichOneof("kind")
        values[name] = list(getattr(feature, kind).value) if kind else []
    return values


def canonical(payload: bytes, where: str) -> bytes:
    """Returns a tf.train.Example, serialized again by protobuf without unknown fields, with the names of `decode`."""
    example = _parse(payload, where)
    example.DiscardUnknownFields()
    return example.SerializeToString()


def _parse(payload: bytes, where: str):
    example = _Example()
    try:
        example.ParseFromString(payload)
    except DecodeError as error:
        raise DataError(f"{where}: the record is not a tf.train.Example; expected pre-training features") from error
    features = example.features.feature
    for name, original in _ORIGINAL_NAMES.items():
        if name in features and original not in features:
            features[original].CopyFrom(features[name])
            del features[name]
    return example
