"""What sentence-transformers adds to a folder of transformers: the modules after the model, prompts, and a length.

modules.json lists the modules, each with a folder: a transformer, its pooling and, if any, a dense layer and a
normalization. Fields have the names of earlier versions too, which every version reads, and which are written.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from tftrain.architecture.describe import describe
from tftrain.config.model import ModelConfig
from tftrain.files import names
from tftrain.files.errors import FormatError
from tftrain.files.strict_json import convert
from tftrain.formats import safetensors_file
from tftrain.formats.links import Link, Names
from tftrain.formats.weights import PROJECTION, Weights, part_of, tensors_of
from tftrain.host.text import listed
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.tokenizer_files import Tokenizer

MODULES, SETTINGS, CONFIG = "modules.json", "config_sentence_transformers.json", "config.json"
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
_POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last", "max": "max"}  # ours by theirs
_MODES = {"cls_token": "cls", "lasttoken": "lasttoken", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens"}
_MODES |= {f"{name}_tokens": name for name in ("mean", "max", "weightedmean")}
_MODES = {f"pooling_mode_{field}": name for field, name in _MODES.items()}  # fields of earlier versions
_ACTIVATIONS = {"tanh": "torch.nn.modules.activation.Tanh", "identity": "torch.nn.modules.linear.Identity"}
_KEYS = ("module_input_name", "module_output_name")
# By flag, the names of the prompts that it may be, the first that there is.
_PROMPTS = {"text_prompt": ("query",), "text_pair_prompt": ("document", "passage", "corpus")}


class Modules(NamedTuple):
    """What a folder says."""

    transformer: Path  # the folder with the files of transformers
    flags: Mapping[str, Any] = {}  # the flags of the model; none if this project can make no vectors of it
    dense: Path | None = None  # the folder of the dense layer
    max_seq_length: int | None = None  # most tokens of a text
    lower_case: bool = False  # whether texts are lower-cased, whatever the tokenizer does
    notes: tuple[str, ...] = ()  # what a user must know, a line each

    def tokenizer(self) -> Tokenizer | None:
        """Returns the tokenizer beside the transformer."""
        tokenizer = tokenizer_files.read(self.transformer)
        if self.lower_case and tokenizer and not tokenizer.lower_case:
            expected = "expected false, or a tokenizer that lower-cases: say do_lower_case in tokenizer_config.json"
            raise FormatError(f"{self.transformer}: do_lower_case of sentence-transformers is true; {expected}")
        return tokenizer


def read(folder: Path) -> Modules:
    """Returns what the files of sentence-transformers in a folder say, if there are any; raises a FormatError."""
    path, found = folder / MODULES, []
    if not path.is_file():
        return Modules(folder)
    try:
        for module in convert(tokenizer_files.read_json(path, list), list[dict[str, Any]]):
            place = names.inside(folder, inner) if (inner := str(module.get("path") or "")) else folder
            names.check_links(place)
            found.append((str(module.get("type")).rpartition(".")[2], place))
        folders = dict(found)
        transformer = folders.get("Transformer", folder)
        files = sorted(transformer.glob("sentence_*_config.json"))  # sentence_bert_config.json, and others
        content = tokenizer_files.read_json(files[0]) if files else {}
        length = convert(content.get("max_seq_length"), int | None, "max_seq_length")
        lower_case = convert(content.get("do_lower_case") or False, bool, "do_lower_case")
        modules = Modules(transformer, max_seq_length=length, lower_case=lower_case)
        if "Pooling" not in folders:
            return modules
        settings = folder / SETTINGS
        flags, notes = _flags(found, tokenizer_files.read_json(settings) if settings.is_file() else {})
    except NotImplementedError as error:
        note = f"{path}: {error}, which this project lacks; so this is the model without its vectors"
        return modules._replace(notes=(note,))
    except ValueError as error:
        raise FormatError(f"{path}, or a file that it names: {error}") from error
    return modules._replace(flags=flags, dense=folders.get("Dense"), notes=tuple(f"{folder}: {note}" for note in notes))


def _flags(modules: Sequence[tuple[str, Path]], settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the flags of the vectors, and notes; a NotImplementedError names what this project lacks."""
    kinds, places, notes = [kind for kind, _ in modules], dict(modules), []
    if kinds != [kind for kind in _ORDER if kind in kinds]:
        raise NotImplementedError(f"it has {', '.join(kinds)}")
    flags = {"task": "embedding", "labels": (), **_pooling(tokenizer_files.read_json(places["Pooling"] / CONFIG))}
    if "Dense" in places:
        flags |= _dense(tokenizer_files.read_json(places["Dense"] / CONFIG))
    if (similarity := settings.get("similarity_fn_name") or "cosine") not in ("cosine", "dot"):
        notes.append(f"its similarity is {similarity}; vectors are compared by products here")
    flags["normalize_embeddings"] = "Normalize" in places or similarity == "cosine"
    if flags["normalize_embeddings"] and "Normalize" not in places:
        notes.append("its vectors get the length 1 here, which changes no cosine")
    if settings.get("truncate_dim"):
        notes.append(f"its truncate_dim is {settings['truncate_dim']}; vectors have all their numbers here")
    prompts = convert(settings.get("prompts") or {}, dict[str, str | None], "prompts")
    default = prompts.get(str(settings.get("default_prompt_name"))) or ""
    used = {}
    for flag, known in _PROMPTS.items():
        own = [prompts[name] for name in known if prompts.get(name) is not None]
        used[flag] = next(filter(None, own), "" if own else default)
    if others := [name for name, prompt in prompts.items() if prompt and prompt not in used.values()]:
        notes.append(f"the prompts {listed(others, 5)} are left out")
    return flags | used, notes


def _pooling(content: Mapping[str, Any]) -> dict[str, Any]:
    modes = content.get("pooling_mode") or [mode for field, mode in _MODES.items() if content.get(field) is True]
    modes = modes if isinstance(modes, list) else [modes]
    if (mode := " and ".join(map(str, modes)) or "mean") not in _POOLINGS:
        raise NotImplementedError(f"its pooling is {mode}")
    return {"pooling": _POOLINGS[mode], "pool_prompt": content.get("include_prompt") is not False}


def _dense(content: Mapping[str, Any]) -> dict[str, Any]:
    of_theirs = {theirs.rpartition(".")[2]: ours for ours, theirs in _ACTIVATIONS.items()}
    activation = str(content.get("activation_function", "Tanh")).rpartition(".")[2]
    others = {"use_residual": False, "bias": True, **dict.fromkeys(_KEYS, "sentence_embedding")}
    different = [name for name, usual in others.items() if content.get(name) not in (None, usual)]
    if different or activation not in of_theirs:
        name = next(iter(different), "activation_function")
        raise NotImplementedError(f"{name} of its dense layer is {content[name]}")
    size = convert(content.get("out_features"), Annotated[int, msgspec.Meta(ge=1)], "out_features")
    return {"embedding_dense": size, "embedding_activation": of_theirs[activation]}


def dense_links(model: ModelConfig) -> list[Link]:
    """Returns the links of the tensors of the dense layer, which are not in the files of transformers."""
    return Names({PROJECTION: "linear"}).links(
        each for each in describe(model).variables() if part_of(each.name) == PROJECTION
    )


def write(folder: Path, weights: Weights) -> list[str]:
    """Writes the files of a model for vectors beside those of transformers; returns the variables in them."""
    model, links, modules = weights.model, dense_links(weights.model), []
    modes = {field: _POOLINGS.get(mode) == model.text_pooling for field, mode in _MODES.items()}
    sizes = {"in_features": model.hidden_size, "out_features": model.embedding_dense, "bias": True}
    contents = {
        "Transformer": {"max_seq_length": weights.longest, "do_lower_case": False},
        "Pooling": {"word_embedding_dimension": model.hidden_size, **modes, "include_prompt": model.pool_prompt},
        "Dense": sizes | {"activation_function": _ACTIVATIONS[model.embedding_activation]} if links else None,
        "Normalize": {} if model.normalize_embeddings else None,
    }
    for kind in (kind for kind, content in contents.items() if content is not None):
        place = f"{len(modules)}_{kind}" if modules else ""
        (folder / place).mkdir(exist_ok=True)
        _write(folder / place / (CONFIG if place else "sentence_bert_config.json"), contents[kind])
        each = {"idx": len(modules), "name": str(len(modules)), "path": place}
        modules.append(each | {"type": f"sentence_transformers.models.{kind}"})
        if kind == "Dense":
            shapes = {link.theirs: link.shape for link in links}
            safetensors_file.write(folder / place / safetensors_file.WEIGHTS, shapes, tensors_of(weights, links))
    _write(folder / MODULES, modules)
    prompts = {known[0]: getattr(model, flag) for flag, known in _PROMPTS.items()}
    similarity = "cosine" if model.normalize_embeddings else "dot"
    _write(folder / SETTINGS, {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": similarity})
    return [name for link in links for name in link.ours]


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
