"""Object-based checkpoints of TensorFlow 2: BERT as tf-models and NVIDIA's DeepLearningExamples save it.

A folder has bert_config.json, a checkpoint and vocab.txt. The name of a tensor is the path of attributes from the saved
object to its variable. Libraries save the whole pre-training model or the encoder alone, under several names. Here,
paths begin with `encoder/`, `masked_lm/` or `head/`, the next-sentence head, whatever they begin with in a file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tftrain.config.train import ModelConfig
from tftrain.formats import tf1, tokenizer
from tftrain.formats.errors import FormatError
from tftrain.formats.links import Link
from tftrain.formats.weights import LinkedWeights, Weights, check_tensors

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# What training keeps beside the variables of the model: parts of a path.
_OF_TRAINING = {".OPTIMIZER_SLOT", "optimizer", "save_counter", "global_step", "step", _GRAPH}


class Library(NamedTuple):
    """How a library names the variables of its BERT.

    Attributes:
        name: for messages.
        whole, alone: its class for the encoder with both heads, and that for the encoder alone.
        roots: where `encoder`, `masked_lm` and `head` begin in a checkpoint of the first class.
        root_alone: where `encoder` begins in one of the second class.
        roots_in: finds where the paths of each part that is there begin, given the names of a checkpoint's tensors.
        links: returns the links of the parts that are there; a variable that is saved twice has two.
        aliases: names of tensors that are shared, and those in the links.
        note: what the heads compute in another way than here; "" if nothing.
    """

    name: str
    whole: str
    alone: str
    roots: Mapping[str, str]
    root_alone: str
    roots_in: Callable[[list[str]], dict[str, str]]
    links: Callable[[ModelConfig, set[str]], list[Link]]
    aliases: Mapping[str, str] = {}
    note: str = ""


def read(folder: Path, library: Library) -> Weights:
    """Opens a model.

    Raises:
        FormatError: a file is missing or damaged, or the model is not one that this project has.
    """
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
    links = {link.ours: link for link in library.links(model, set(roots))}
    twice = [link.theirs for link in library.links(model, set(roots)) if links[link.ours] != link]
    shapes = {name: checkpoint.shapes[theirs] for name, theirs in holders.items()}
    there = check_tensors(str(checkpoint.path), links.values(), shapes, twice)
    found = LinkedWeights(str(folder), model, there, lambda name: checkpoint.read(holders[name]), own_tokenizer)
    if library.note and "masked_lm" not in found.missing:
        found.notes = (library.note,)
    return found


def _prefix(folder: Path) -> Path:
    """Returns the path of the only checkpoint of a folder, without `.index`."""
    found = sorted(folder.glob("*.index"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise FormatError(
            f"{folder}: expected one checkpoint of TensorFlow, such as {tf1.CHECKPOINT}.index; found {names}"
        )
    return found[0].with_suffix("")


def _own_name(name: str, roots: Mapping[str, str]) -> str:
    """Returns the name of a tensor with the beginning that the links have; the name itself if no part has it."""
    fitting = [part for part, root in roots.items() if name.startswith(root)]
    if not fitting:
        return name
    part = max(fitting, key=lambda each: len(roots[each]))  # That of a head may begin with that of the encoder.
    return f"{part}/{name.removeprefix(roots[part])}"


def begins(names: Iterable[str], anchor: str) -> str | None:
    """Returns what is before a path that ends with this one, the shortest if there are several; None: no path."""
    fitting = [name for name in names if name == anchor or name.endswith(f"/{anchor}")]
    return min(fitting, key=len).removesuffix(anchor) if fitting else None


def write(folder: Path, library: Library, weights: Weights, architecture: str | None = None) -> list[str]:
    """Writes a model.

    Args:
        folder: an empty one.
        library: whose classes read it.
        weights: of the model.
        architecture: a class of the library; by default the one with heads if all are there.

    Returns:
        The variables that are left out.

    Raises:
        FormatError: the library has no such model.
    """
    import tensorflow as tf

    from tftrain.formats import tf_checkpoint

    if architecture not in (None, library.whole, library.alone):
        raise FormatError(f"--architecture={architecture}: expected {library.whole} or {library.alone}")
    tf1.write_config(folder, weights.model)
    has_heads = not weights.missing
    if architecture == library.whole and not has_heads:
        raise FormatError(
            f"{weights.path}: it has no {' and no '.join(weights.missing)}, which {library.whole} needs; "
            "--init_missing adds what is missing, with initial values"
        )
    whole = has_heads and architecture != library.alone
    roots = library.roots if whole else {"encoder": library.root_alone}
    links = [
        link._replace(theirs=_full(link.theirs, roots))
        for link in library.links(weights.model, set(roots))
        if link.ours[0] in weights.shapes
    ]

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for link in links:
            yield link.theirs, link.join([weights.read(each) for each in link.ours])

    shapes = {link.theirs: link.shape for link in links}
    graph = tf.constant(object_graph(shapes))
    tf_checkpoint.write(folder / tf1.CHECKPOINT, shapes, tensors(), {_GRAPH: graph})
    if weights.tokenizer:
        tokenizer.write(folder, weights.tokenizer)
    written = {each for link in links for each in link.ours}
    return [each for each in weights.shapes if each not in written]


def _full(name: str, roots: Mapping[str, str]) -> str:
    part, _, rest = name.partition("/")
    return f"{roots[part]}{rest}"


def object_graph(names: Iterable[str]) -> bytes:
    """Returns the graph of objects that holds variables of these names: a tree of the parts of their paths.

    `tf.train.Checkpoint.restore` follows it beside the objects that it restores. The message is `TrackableObjectGraph`
    of TensorFlow's trackable_object_graph.proto.
    """
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph()
    graph.nodes.add()
    places = {(): 0}
    for name in names:
        path: tuple[str, ...] = ()
        for part in name.removesuffix(VALUE).split("/"):
            parent, path = places[path], (*path, part)
            if path not in places:
                places[path] = len(graph.nodes)
                graph.nodes.add()
                # In a path, a slash is ".S" and a dot is two.
                local = part.replace("..", "\0").replace(".S", "/").replace("\0", ".")
                graph.nodes[parent].children.add(node_id=places[path], local_name=local)
        graph.nodes[places[path]].attributes.add(name="VARIABLE_VALUE", checkpoint_key=name)
    return graph.SerializeToString()
