"""Small labelled files and a tokenizer for tests."""

import json
import random

import numpy as np

from tftrain.prepare import builtin_corpus
from tftrain.tokenizer.tokenizer_files import Tokenizer
from tftrain.tokenizer.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
WORDS = ["tensor", "shape", "value", "key", "list", "map", "file", "path", "name", "error", "type", "good", "bad"]
TAGS = {"good": "B-A", "bad": "B-B", "name": "I-A"}
OF_PROMPTS = ["the", "model", "of", "the", "weights", "of", "words"]


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


def write_corpus(folder, documents, queries, seed=7):
    """Writes documents, queries and relevance as in BEIR; returns the flags that name them."""
    draw = np.random.default_rng(seed)

    def text():
        return " ".join(draw.choice(WORDS, 5))

    rows = {
        "corpus.jsonl": [{"_id": f"d{n}", "title": WORDS[n % 9], "text": text()} for n in range(documents)],
        "queries.jsonl": [{"_id": f"q{n}", "text": text()} for n in range(queries)],
    }
    for name, lines in rows.items():
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged = {(f"q{n % queries}", f"d{draw.integers(documents)}"): n % 3 for n in range(5 * queries)}
    lines = [f"{query}\t{document}\t{level}\n" for (query, document), level in judged.items()]
    (folder / "qrels.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *lines]))
    flags = {"eval_file": "queries.jsonl", "eval_corpus": "corpus.jsonl", "eval_qrels": "qrels.tsv"}
    return [f"--{flag}={folder / name}" for flag, name in flags.items()]


def write_tasks(folder):
    """Writes files of 48 examples and 19 held-out ones for each task of encoders; returns the flags of each."""
    vocabulary = write_vocabulary(folder / "vocabulary")
    draw = np.random.default_rng(5)

    def words(seed):
        return np.random.default_rng(seed).choice(WORDS, 6).tolist()

    def table(name, count, row):
        lines = [json.dumps(row(int(draw.integers(1 << 30)))) + "\n" for _ in range(count)]
        (folder / name).write_text("".join(lines))

    def conll(name, count):
        sentences = [words(int(draw.integers(1 << 30))) for _ in range(count)]
        text = "\n".join("".join(f"{word} {TAGS.get(word, 'O')}\n" for word in each) for each in sentences)
        (folder / name).write_text(text)

    for split, count in (("train", 48), ("eval", 19)):
        write_classes(folder / f"{split}.tsv", count, seed=count)
        table(f"{split}_multi.jsonl", count, lambda seed: {"text": " ".join(words(seed)), "label": words(seed)[:2]})
        table(f"{split}_number.jsonl", count, lambda seed: {"text": " ".join(words(seed)), "label": seed % 7 / 3})
        table(f"{split}_pairs.jsonl", count, lambda seed: {"text": words(seed)[0], "text_pair": " ".join(words(seed))})
        conll(f"{split}.conll", count)
        write_squad(folder / f"{split}.json", _questions(draw, count))

    def task(name, pattern, *more):
        sources = (f"--train_file={folder / pattern.format('train')}", f"--eval_file={folder / pattern.format('eval')}")
        return (f"--task={name}", *sources, f"--tokenizer_dir={vocabulary}", "--max_seq_length=16", *more)

    return {
        "classification": task("classification", "{}.tsv"),
        "multi_label": task("multi_label", "{}_multi.jsonl"),
        "regression": task("regression", "{}_number.jsonl"),
        "token_classification": task("token_classification", "{}.conll"),
        "question_answering": task("question_answering", "{}.json", "--doc_stride=6", "--max_query_length=3"),
        "embedding": task("embedding", "{}_pairs.jsonl", "--micro_batch_size=2"),
    }


def _questions(draw, count):
    """Returns questions about paragraphs of the built-in corpus: which word stands there?"""
    paths = builtin_corpus.list_files(("absl-py",))
    paragraphs = [
        text for found in builtin_corpus.extract_all(paths) for text in found if len(text.split()) in (4, 5, 6)
    ]
    for number in range(count):
        text = paragraphs[int(draw.integers(len(paragraphs)))]
        yield text, f"q{number}", str(draw.choice(WORDS)), [str(draw.choice(text.split()))]


def write_completions(path, count, seed):
    """Writes prompts of one to five words, and completions that have them in reverse; one prompt is empty."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = draw.choice(OF_PROMPTS, int(draw.integers(1, 6))).tolist()
        rows.append({"prompt": " ".join(words) + " ->", "completion": " " + " ".join(reversed(words))})
    rows[1]["prompt"] = ""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
