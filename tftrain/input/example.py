"""Reads and writes tf.train.Example messages with protobuf alone, without TensorFlow.

The module has three users. The pre-flight checks read the sizes of the first record before TensorFlow starts. The
preparation's workers write records. The input pipeline validates each record before TensorFlow's parser sees it: the
parser copies an invalid record into its error message, and bytes that are not UTF-8 cause a second error there.

The message type has the same fields as TensorFlow's example.proto. It is declared in a separate descriptor pool, so it
does not conflict with TensorFlow's declaration.
"""

from collections.abc import Mapping, Sequence

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tftrain.input.errors import DataError


def _example_class():
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tftrain/example.proto", package="tftrain", syntax="proto3")

    def message(name, *fields, parent=None):
        entry = (parent.nested_type if parent else file.message_type).add(name=name)
        for number, (field_name, kind, repeated) in enumerate(fields, 1):
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if isinstance(kind, str):
                entry.field.add(name=field_name, number=number, type=field.TYPE_MESSAGE, type_name=kind, label=label)
            else:
                entry.field.add(name=field_name, number=number, type=kind, label=label)
        return entry

    message("BytesList", ("value", field.TYPE_BYTES, True))
    message("FloatList", ("value", field.TYPE_FLOAT, True))
    message("Int64List", ("value", field.TYPE_INT64, True))
    feature = message(
        "Feature",
        ("bytes_list", ".tftrain.BytesList", False),
        ("float_list", ".tftrain.FloatList", False),
        ("int64_list", ".tftrain.Int64List", False),
    )
    feature.oneof_decl.add(name="kind")
    for part in feature.field:
        part.oneof_index = 0
    features = message("Features", ("feature", ".tftrain.Features.FeatureEntry", True))
    entry = message(
        "FeatureEntry", ("key", field.TYPE_STRING, False), ("value", ".tftrain.Feature", False), parent=features
    )
    entry.options.map_entry = True
    message("Example", ("features", ".tftrain.Features", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tftrain.Example"))


_Example = _example_class()
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
    """Returns the features of a serialized tf.train.Example, by their original names.

    Args:
        payload: one record.
        where: its file and byte offset, for the error message.

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
