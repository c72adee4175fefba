"""Object-based checkpoints of TensorFlow 2: BERT as tf-models and NVIDIA's DeepLearningExamples save it.

A folder has bert_config.json, a checkpoint and vocab.txt. The name of a tensor is the path of attributes from the saved
object to its variable. Libraries save the whole pre-training model or the encoder alone, under several names. Here,
paths begin with `encoder/`, `masked_lm/` or `head/`, the next-sentence head, whatever they begin with in a file.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tftrain.architecture.describe import describe
from tftrain.architecture.parts import Variable
from tftrain.config.model import ModelConfig
from tftrain.families.family import QUERY_KEY_VALUE
from tftrain.files.errors import FormatError
from tftrain.formats import tf1
from tftrain.formats.links import Link, Names, reshaped
from tftrain.formats.weights import LinkedWeights, Weights, check_tensors, heads_of, require_heads, tensors_of

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
LEAVES = {leaf: f"/{leaf}{VALUE}" for leaf in ("kernel", "bias", "gamma", "beta")}
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# What training keeps beside the variables of the model: parts of a path.
_OF_TRAINING = {".OPTIMIZER_SLOT", "optimizer", "save_counter", "global_step", "step", _GRAPH}


class Library(NamedTuple):
    """How a library names the variables of its BERT."""

    name: str  # for messages
    whole: str  # its class for the encoder with both heads
    alone: str  # its class for the encoder alone
    names: Names  # the names of all variables but the pooler's
    # The scopes that hold the pooler, each as a whole; `{layer}` is the number after that of the last block.
    poolers: tuple[str, ...]
    roots: Mapping[str, str]  # where `encoder`, `masked_lm` and `head` begin in a checkpoint of the first class
    root_alone: str  # where `encoder` begins in one of the second class
    # Finds where the paths of each part that is there begin, given the names of a checkpoint's tensors.
    roots_in: Callable[[list[str]], dict[str, str]]
    aliases: Mapping[str, str] = {}  # names of tensors that are shared, and those in the links
    note: str = ""  # what the heads compute in another way than here; "" if nothing


def _links(library: Library, model: ModelConfig, parts: Iterable[str]) -> list[Link]:
    """Returns the links of the parts that are there; a variable that is saved twice has two.

    In variables of the attention each head has an axis of its own.
    """
    heads = (model.num_attention_heads, model.head_size)

    def alone(theirs: str, variable: Variable) -> Link:
        shape = variable.shape
        if variable.name.rpartition("/")[0].endswith(QUERY_KEY_VALUE):
            shape = (*shape[:-1], *heads)
        elif variable.name.endswith("attention/output/kernel"):
            shape = (*heads, *shape[1:])
        return reshaped(theirs, variable, shape)

    scopes, after_last = library.names.scopes, library.names.first_layer + model.num_hidden_layers
    poolers = ({"pooler": pooler.format(layer=after_last)} for pooler in library.poolers)
    several = [library.names._replace(scopes={**scopes, **pooler}, alone=alone) for pooler in poolers]
    links = (link for each in describe(model).variables() for names in several for link in names.links([each]))
    return list({link.theirs: link for link in links if link.theirs.partition("/")[0] in parts}.values())


def read(library: Library, folder: Path) -> Weights:
    """Opens a model, see `registry`."""
    from tftrain.formats.tf_checkpoint import TfCheckpoint

    model, own_tokenizer = tf1.read_model(folder)
    checkpoint = TfCheckpoint(_prefix(folder))
    names = [name for name in checkpoint.shapes if _OF_TRAINING.isdisjoint(name.split("/"))]
    roots = library.roots_in(names)
    if "encoder" not in roots:
        raise FormatError(f"{checkpoint.path}: it has no tensor of an encoder of {library.name}")
    own_names = {name: _own_name(name, roots) for name in names}
    holders = {own: name for name, own in own_names.items() if own not in library.aliases}
    holders |= {library.aliases[own]: name for name, own in own_names.items() if own in library.aliases}
    # A pooler that both the encoder and the head have: the head's is the one that predictions use.
    every = _links(library, model, roots)
    links = {link.ours: link for link in every}
    twice = [link.theirs for link in every if links[link.ours] is not link]
    shapes = {name: checkpoint.shapes[theirs] for name, theirs in holders.items()}
    there = check_tensors(str(checkpoint.path), links.values(), shapes, twice)
    weights = LinkedWeights(str(folder), model, there, lambda name: checkpoint.read(holders[name]), own_tokenizer)
    if library.note and "masked_lm" not in weights.missing:
        weights.notes = (library.note,)
    return weights


def _prefix(folder: Path) -> Path:
    """Returns the path of the only checkpoint of a folder, without `.index`."""
    indexes = sorted(folder.glob("*.index"))
    if len(indexes) != 1:
        names = ", ".join(path.name for path in indexes) or "none"
        expected = f"expected one checkpoint of TensorFlow, such as {tf1.CHECKPOINT}.index"
        raise FormatError(f"{folder}: {expected}; found {names}")
    return indexes[0].with_suffix("")


def _own_name(name: str, roots: Mapping[str, str]) -> str:
    """Returns the name of a tensor with the beginning that the links have; the name itself if no part has it."""
    fitting = [part for part, root in roots.items() if name.startswith(root)]
    if not fitting:
        return name
    part = max(fitting, key=lambda each: len(roots[each]))  # A head's root may begin with the encoder's.
    return f"{part}/{name.removeprefix(roots[part])}"


def begins(names: Iterable[str], anchor: str) -> str | None:
    """Returns what is before a path that ends with this one, the shortest if there are several; None: no path."""
    fitting = [name for name in names if name == anchor or name.endswith(f"/{anchor}")]
    return min(fitting, key=len).removesuffix(anchor) if fitting else None


def write(library: Library, folder: Path, weights: Weights, architecture: str | None = None) -> Iterable[str]:
    """Writes a model, see `registry.write_weights`; by default as the class with heads if all are there."""
    import tensorflow as tf

    from tftrain.formats import tf_checkpoint

    if architecture not in (None, library.whole, library.alone):
        raise FormatError(f"--architecture={architecture}: expected {library.whole} or {library.alone}")
    tf1.write_config(folder, weights.model)
    if architecture == library.whole:
        require_heads(weights, heads_of(weights.model), library.whole)
    is_whole = not weights.missing and architecture != library.alone
    roots = library.roots if is_whole else {"encoder": library.root_alone}
    links = [link for link in _links(library, weights.model, roots) if link.ours[0] in weights.shapes]
    full = [
        link._replace(theirs=roots[part] + rest) for link in links for part, _, rest in [link.theirs.partition("/")]
    ]
    graph = tf.constant(object_graph(link.theirs for link in full))
    tf_checkpoint.write(folder / tf1.CHECKPOINT, tensors_of(weights, full), {_GRAPH: graph})
    return [name for link in links for name in link.ours]


def object_graph(names: Iterable[str]) -> bytes:
    """Returns the graph of objects that holds variables of these names: a tree of the parts of their paths.

    `tf.train.Checkpoint.restore` follows it beside the objects that it restores. The message is `TrackableObjectGraph`
    of TensorFlow's trackable_object_graph.proto.
    """
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph()
    graph.nodes.add()
    numbers = {(): 0}
    for name in names:
        path: tuple[str, ...] = ()
        for part in name.removesuffix(VALUE).split("/"):
            parent, path = numbers[path], (*path, part)
            if path not in numbers:
                numbers[path] = len(graph.nodes)
                graph.nodes.add()
                # In a path, a slash is ".S" and a dot is two.
                local = part.replace("..", "\0").replace(".S", "/").replace("\0", ".")
                graph.nodes[parent].children.add(node_id=numbers[path], local_name=local)
        graph.nodes[numbers[path]].attributes.add(name="VARIABLE_VALUE", checkpoint_key=name)
    return graph.SerializeToString()
