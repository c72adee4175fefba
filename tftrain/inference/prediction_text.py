"""How tftrain.predict prints predictions: lines to read, or a JSON object."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tftrain.host.text import CONTROLS, listed, printable
from tftrain.inference.candidates import Candidate, Continuation
from tftrain.inference.trained_model import Sample

Predicted = list[list[Candidate]] | Continuation  # for each masked token, or after the text


def as_text(text: str, sample: Sample, value: Predicted, mask: str, streamed: bool = False) -> str:
    """Returns the lines that are printed for a text, without the text and its continuation if they were streamed.

    `mask` is the token that is predicted.
    """
    lines = [] if streamed else [printable(text)]
    if not isinstance(value, list):
        lines.append(f"  next: {_listed(value.candidates, quote=True)}")
        lines += [f"  continued: {json.dumps(value.text, ensure_ascii=False)}"] if value.text and not streamed else []
    elif not value:
        lines.append(f"  no {mask}")
    else:
        lines += [f"  token {place}: {_listed(each)}" for place, each in zip(sample.masks, value, strict=True)]
    return "\n".join(map(printable, lines))


def of_task(text: str, task: str, item: Mapping[str, Any], top_k: int) -> str:
    """Returns the lines that are printed for a text, given its object from `task_predictions.TaskPredictions`.

    At most `top_k` classes, answers or numbers of a vector are printed.
    """
    return f"{printable(text)}\n  {printable(_predicted(task, item, top_k))}"


def _predicted(task: str, item: Mapping[str, Any], top_k: int) -> str:
    if "probabilities" in item:
        ranked = sorted(item["probabilities"].items(), key=lambda each: -each[1])
        if task == "classification":
            return f"class: {_scored(ranked[:top_k])}"
        chosen = [each for each in ranked if each[0] in item["prediction"]]
        return f"classes: {_scored(chosen)}" if chosen else f"no class; the best: {_scored(ranked[:1])}"
    if "n_best" in item:
        best = [(json.dumps(each["text"], ensure_ascii=False), each["score"]) for each in item["n_best"]]
        return f"answer: {_scored(best[:top_k])}"
    if "words" in item:
        pairs = zip(item["words"], item["prediction"], strict=True)
        return f"words: {', '.join(f'{word} {name}' for word, name in pairs)}"
    if "embedding" in item:
        return f"embedding: {listed([f'{each:.4f}' for each in item['embedding']], top_k)}"
    return f"{'cosine' if task == 'embedding' else 'number'}: {item['prediction']:.4f}"


def _scored(pairs: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {score:.4f}" for name, score in pairs)


def _listed(candidates: Sequence[Candidate], quote: bool = False) -> str:
    return _scored((json.dumps(token, ensure_ascii=False) if quote else token, score) for token, score in candidates)


def as_json(text: str, sample: Sample, value: Predicted) -> str:
    """Returns the JSON object of a text, in one line."""
    if isinstance(value, list):
        masks = zip(sample.masks.tolist(), value, strict=True)
        values = {"masks": [{"position": n, "candidates": [each._asdict() for each in best]} for n, best in masks]}
    else:
        values = {"candidates": [each._asdict() for each in value.candidates], "continuation": value.text}
    return json_line({"text": text, **values})


def json_line(value: Mapping[str, Any]) -> str:
    """Returns JSON that a terminal shows as it is: control characters are escapes of JSON."""
    return CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
