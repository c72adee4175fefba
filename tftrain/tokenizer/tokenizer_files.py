"""The tokenizer that travels with a model: its vocabulary, its kind, and how it normalizes text."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from tftrain.families.bert import NORMALIZATION
from tftrain.files import names, strict_json
from tftrain.files.errors import DataError, FormatError, MissingModelError
from tftrain.files.reading import read_small
from tftrain.host.text import reason
from tftrain.tokenizer import added_tokens, pipelines, sentencepiece_model
from tftrain.tokenizer.byte_pairs import around, read_byte_pairs, with_beginning
from tftrain.tokenizer.roles import MAX_BYTES, SETTINGS, beside, content_of, named
from tftrain.tokenizer.tokenizer_model import MODEL_FILES, ChatTemplate, Tokenizer
from tftrain.tokenizer.vocabulary import LIBRARY, SPECIAL_TOKENS, Vocabulary, check_tokens, read_vocabulary

VOCAB = "vocab.txt"
CHAT_TEMPLATE, CHAT_TEMPLATES = "chat_template.jinja", "additional_chat_templates"
# How BERT's words are made, in the settings of transformers and of the library `tokenizers`.
_WORDS_OF_BERT = {
    **dict.fromkeys(("clean_text", "handle_chinese_chars", "tokenize_chinese_chars", "do_basic_tokenize"), True),
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
}


def write(folder: Path, tokenizer: Tokenizer, longest: int | None = None) -> None:
    """Writes the files of a tokenizer as Hugging Face's transformers read them.

    A vocabulary of byte-level BPE is `tokenizer.json`; that of WordPiece is `vocab.txt`, as in the original BERT, with
    added tokens in `tokenizer.json`. `longest` is the number of tokens of the model's longest text.
    """
    kind, settings = tokenizer.vocabulary.tokenizer_type, {}
    special = named(tokenizer.vocabulary.roles, tokenizer.vocabulary.tokens)
    if kind == "wordpiece":
        accents = tokenizer.lower_case if tokenizer.strip_accents is None else tokenizer.strip_accents
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": tokenizer.lower_case, "strip_accents": accents}
        settings |= special
    elif kind != "sentencepiece" and tokenizer.vocabulary.is_for_encoders:
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
        if not tokenizer.vocabulary.roles.second_type:
            settings["model_input_names"] = ["input_ids", "attention_mask"]
    elif kind != "sentencepiece":
        settings = {"tokenizer_class": "GPT2TokenizerFast", **tokenizer.named_tokens}
        # The fast tokenizer of GPT-2 refuses bos_token; the general one has token types.
        if tokenizer.begins_with_bos or len(tokenizer.around_ids[1]) or kind in LIBRARY:
            settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": tokenizer.begins_with_bos}
            settings["model_input_names"] = ["input_ids", "attention_mask"]
    if tokenizer.has_added_tokens:
        settings["added_tokens_decoder"] = added_tokens.settings_of(tokenizer.model)
    if longest:
        settings["model_max_length"] = longest
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template
    settings |= {"tokenizer_type": kind, "lower_case": tokenizer.lower_case, "normalization": tokenizer.normalization}
    files = {SETTINGS: (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()}
    if MODEL_FILES[kind] != "tokenizer.json" or kind == "wordpiece":
        tokens = added_tokens.pieces_of(tokenizer.model) if tokenizer.has_added_tokens else tokenizer.vocabulary.tokens
        files[VOCAB] = "".join(f"{token}\n" for token in tokens).encode()
    if tokenizer.model is not None:
        files[MODEL_FILES[kind]] = tokenizer.model
    for name, content in files.items():
        (folder / name).write_bytes(content)


def read(folder: Path) -> Tokenizer | None:
    """Reads the tokenizer of a folder; None if there is no vocabulary in it.

    Where no file says whether text is lower-cased, the vocabulary does: a cased one has upper-case letters. Raises a
    FormatError if a file is damaged or a link that leads out, or this project does not have such a tokenizer.
    """
    names.check_links(folder, FormatError)
    for file in (folder / CHAT_TEMPLATES).glob("*.jinja"):
        names.inside(folder, f"{CHAT_TEMPLATES}/{file.name}", FormatError)
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    kind = settings.get("tokenizer_type") or _kind(folder)
    if kind is None:
        return None
    try:
        return (_of_library if kind in ("bpe", *LIBRARY) else _of_words)(folder, kind, settings)
    except DataError as error:
        raise FormatError(str(error)) from error


def _of_library(folder: Path, kind: str, settings: dict[str, Any]) -> Tokenizer:
    """Returns a byte-level BPE, or a tokenizer in another format of the library `tokenizers`."""
    names_of = ("tokenizer.json", "vocab.json", *sentencepiece_model.FILES)
    file = next(folder / name for name in names_of if (folder / name).is_file())
    vocabulary, model = (read_byte_pairs if kind == "bpe" else pipelines.read_file)(str(file))
    is_lower = settings.get("lower_case") is True
    own = Tokenizer(vocabulary, is_lower, "none", model, chat_template=_chat_template(folder, settings))
    is_encoders = set(SPECIAL_TOKENS) <= set(vocabulary.tokens) or vocabulary.is_for_encoders
    return own if is_encoders else _of_decoder(own, settings, file)


def _of_words(folder: Path, kind: str, settings: dict[str, Any]) -> Tokenizer:
    """Returns a WordPiece or a model of sentencepiece with tftrain's vocabulary beside it."""
    path = folder / "tokenizer.json"
    has_vocabulary = (folder / VOCAB).is_file()
    vocabulary = read_vocabulary(str(folder / VOCAB), kind) if has_vocabulary else _from_tokenizer_json(path)
    content = read_json(path) if path.is_file() else {}
    settings = _bert_normalizer(content) | settings
    if kind == "wordpiece":
        _check_words(folder, settings)
    lower_case = settings.get("do_lower_case", settings.get("lower_case", settings.get("lowercase")))
    if lower_case is None:
        # The special tokens have upper-case letters in every vocabulary.
        lower_case = all(token == token.lower() for token in vocabulary.tokens if not token.startswith("["))
    strip_accents = settings.get("strip_accents")
    if strip_accents not in (None, True, False):
        shown = strict_json.shown(strip_accents)
        raise FormatError(f"{folder / SETTINGS}: strip_accents is {shown}; expected a boolean")
    model = _bytes(folder / MODEL_FILES[kind]) if kind == "sentencepiece" else None
    normalization = settings.get("normalization", "nfkc" if kind == "sentencepiece" else NORMALIZATION)
    if kind == "wordpiece" and normalization == NORMALIZATION:
        accents = bool(lower_case) if strip_accents is None else strip_accents
        vocabulary, model = added_tokens.with_added(vocabulary, str(folder), bool(lower_case), accents)
    template = _chat_template(folder, settings)
    return Tokenizer(vocabulary, bool(lower_case), normalization, model, strip_accents, template)


def _chat_template(folder: Path, settings: dict[str, Any]) -> ChatTemplate | None:
    """Returns the default one of the templates, or the only one."""
    templates = _chat_templates(folder, settings)
    return templates.get("default") or (next(iter(templates.values())) if len(templates) == 1 else None)


def other_templates(folder: Path) -> list[str]:
    """Returns the names of a folder's chat templates that its tokenizer does not have."""
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    return sorted(set(templates) - {"default"}) if len(templates := _chat_templates(folder, settings)) > 1 else []


def _chat_templates(folder: Path, settings: dict[str, Any]) -> dict[str, ChatTemplate]:
    """Returns the chat templates of a folder by name: of the settings, or of files, as later versions have them."""
    given, path = settings.get("chat_template"), str(folder / SETTINGS)
    if isinstance(given, list):
        given = {str(each.get("name")): each.get("template") for each in given if isinstance(each, dict)}
    named = given if isinstance(given, dict) else {"default": given}
    templates = {name: ChatTemplate.of(text, path) for name, text in named.items() if isinstance(text, str)}
    files = sorted((folder / CHAT_TEMPLATES).glob("*.jinja"))
    for file in [*files, *([folder / CHAT_TEMPLATE] if (folder / CHAT_TEMPLATE).is_file() else [])]:
        name = "default" if file.parent == folder else file.stem
        templates[name] = ChatTemplate.of(_bytes(file).decode("utf-8", "replace"), str(file))
    return templates


def _of_decoder(tokenizer: Tokenizer, settings: dict[str, Any], file: Path) -> Tokenizer:
    """Returns a decoder's tokenizer with its special tokens, which puts bos_token before a text as transformers does.

    add_bos_token of the settings decides, or else the file; settings that tftrain wrote without it mean no token.
    """
    ids, begins = around(tokenizer.model)[0], settings.get("add_bos_token")
    if begins is None and ids and "tokenizer_type" not in settings:
        if len(ids) > 1 or ids[0] >= len(tokenizer.vocabulary):
            raise FormatError(f"{file}: it puts the tokens {ids} before a text; expected one of the vocabulary at most")
        settings, begins = settings | {"bos_token": tokenizer.vocabulary.tokens[ids[0]]}, True
    if tokenizer.vocabulary.roles.end is None:
        lacking = " and ".join(tokenizer.vocabulary.roles.lacking)
        fault = f"no token ends a document, as a decoder needs it, and none is for {lacking}, as an encoder needs it"
        raise FormatError(f"{file}: {fault}; name them in {SETTINGS} beside it")
    own = tokenizer._replace(special=_special(tokenizer, settings), begins_with_bos=begins is True)
    roles = {"beginning": "bos_token", "separator": "eos_token", "unknown": "unk_token"}
    ids_of = {role: own.vocabulary.id(own.named_tokens[name]) for role, name in roles.items()}
    own = own._replace(vocabulary=dataclasses.replace(own.vocabulary, roles=own.vocabulary.roles._replace(**ids_of)))
    if ids == own.begin_ids.tolist():
        return own
    return own._replace(model=with_beginning(own.model, own.named_tokens["bos_token"] if own.begins_with_bos else None))


def _special(tokenizer: Tokenizer, settings: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the special tokens that the settings name, other than the defaults."""
    defaults, tokens = tokenizer.named_tokens, set(tokenizer.vocabulary.tokens)
    named = {name: content_of(settings.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return tuple((name, token) for name, token in named.items() if token in tokens and token != defaults.get(name))


def _kind(folder: Path) -> str | None:
    path = folder / "tokenizer.json"
    if kind := _library_kind(read_json(path)) if path.is_file() else None:
        return kind
    others = (("wordpiece", (VOCAB,)), ("bpe", ("vocab.json",)), ("unigram", sentencepiece_model.FILES))
    return next((kind for kind, files in others if any((folder / name).is_file() for name in files)), None)


def _check_words(folder: Path, settings: dict[str, Any]) -> None:
    """Raises FormatError if the words that WordPiece cuts are not those of BERT, as in a Japanese one with MeCab."""
    given = {name: settings.get(name) for name in _WORDS_OF_BERT}
    different = {name: value for name, value in given.items() if value not in (_WORDS_OF_BERT[name], None)}
    if different:
        name, value = next(iter(different.items()))
        expected = "expected words as BERT has them; name the folder of another tokenizer"
        raise FormatError(f"{folder}: the tokenizer has {name} {strict_json.shown(value)}; {expected}")


def _bert_normalizer(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the BertNormalizer in the content of tokenizer.json, if there is one."""
    normalizer = content.get("normalizer")
    return normalizer if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer" else {}


def _library_kind(content: dict[str, Any]) -> str | None:
    """Returns the kind of tokenizer in the content of tokenizer.json: BERT's, a byte-level BPE, or a pipeline."""
    model, normalizer = content.get("model"), content.get("normalizer")
    if not isinstance(model, dict):
        return None
    of_words = _bert_normalizer(content) and all(
        normalizer.get(name, True) for name in ("clean_text", "handle_chinese_chars")
    )
    cuts = json.dumps(content.get("pre_tokenizer") or {})
    kind = model.get("type", "BPE" if "merges" in model else "WordPiece")
    if kind == "WordPiece":
        return "wordpiece" if of_words and '"type": "BertPreTokenizer"' in cuts else "pipeline"
    of_bytes = '"ByteLevel"' in cuts and '"add_prefix_space": true' not in cuts
    if kind == "BPE" and of_bytes and (normalizer or {}).get("type", "NFC") == "NFC":
        return "bpe"
    return "unigram" if kind == "Unigram" else "pipeline"


def _from_tokenizer_json(path: Path) -> Vocabulary:
    model = read_json(path).get("model")
    ids = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(ids, dict) or sorted(ids.values()) != list(range(len(ids))):
        raise FormatError(f"{path}: model.vocab is not a vocabulary with the ids 0 to its number of tokens")
    tokens = tuple(sorted(ids, key=ids.__getitem__))
    roles = beside(str(path.parent), tokens)
    check_tokens(tokens, str(path), "wordpiece", roles)
    return Vocabulary(tokens, "wordpiece", roles)


def read_json(path: Path, kind: type = dict) -> Any:
    """Returns the object, or another `kind`, in a JSON file; raises a FormatError if there is no such thing in it."""
    try:
        content = strict_json.parse(_bytes(path))
    except ValueError as error:
        raise FormatError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, kind):
        raise FormatError(f"{path}: expected a JSON {'object' if kind is dict else 'list'}")
    return content


def _bytes(path: Path) -> bytes:
    try:
        return read_small(str(path), MAX_BYTES)
    except FileNotFoundError as error:
        raise MissingModelError(f"{path}: {reason(error)}") from error
    except OSError as error:
        raise FormatError(f"{path}: {reason(error)}") from error
