"""Small labelled files and a tokenizer for tests."""

import json
import random

from tftrain.formats.tokenizer import Tokenizer
from tftrain.input.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
WORDS = ["tensor", "shape", "value", "key", "list", "map", "file", "path", "name", "error", "type", "good", "bad"]


def tokenizer():
    """Returns a WordPiece tokenizer of some words and all letters."""
    tokens = (*SPECIAL_TOKENS, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", ",", "-", "'", "$")
    return Tokenizer(Vocabulary(tokens, "wordpiece"), True, "bert")


def write_vocabulary(folder):
    """Writes the vocabulary of `tokenizer`, and returns the folder."""
    folder.mkdir(exist_ok=True)
    text = "".join(f"{token}\n" for token in tokenizer().vocabulary.tokens)
    (folder / "vocab.txt").write_text(text)
    return folder


def write_classes(path, count, seed, classes=("negative", "positive")):
    """Writes a TSV whose label follows from the word good or bad."""
    draw = random.Random(seed)
    lines = ["text\tlabel\n"]
    for _ in range(count):
        label = draw.randrange(2)
        words = draw.choices(WORDS[:-2], k=draw.randint(2, 12))
        words.insert(draw.randrange(len(words)), ("bad", "good")[label])
        lines.append(f"{' '.join(words)}\t{classes[label]}\n")
    path.write_text("".join(lines))
    return path


def squad(questions):
    """Returns SQuAD's JSON, given (context, id, question, answers); an answer is a text that is in the context."""
    paragraphs = []
    for context, name, question, answers in questions:
        found = [{"text": answer, "answer_start": context.index(answer)} for answer in answers]
        entry = {"id": name, "question": question, "answers": found, "is_impossible": not answers}
        paragraphs.append({"context": context, "qas": [entry]})
    return {"version": "v2.0", "data": [{"title": "x", "paragraphs": paragraphs}]}


def write_squad(path, questions):
    """Writes SQuAD's JSON, see `squad`."""
    path.write_text(json.dumps(squad(questions)))
    return path
