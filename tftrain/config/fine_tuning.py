"""The flags of fine-tuning: where the labelled examples are, and how a run is judged."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tftrain.config.fields import Problem, flag, refused, restricted, superfluous
from tftrain.families import FAMILIES, listed
from tftrain.host.user_code import is_class_name

GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "mnli_mismatched", "qnli", "rte", "wnli")
# Names of a task's scores; the first one chooses the best checkpoint by default. Higher is better.
METRICS = {
    "classification": ("accuracy", "f1", "matthews"),
    "multi_label": ("f1_micro", "f1_macro", "exact_match"),
    "regression": ("spearman", "pearson", "negative_rmse"),
    "token_classification": ("f1", "precision", "recall"),
    "question_answering": ("f1", "exact_match"),
    "embedding": ("recall_at_1", "mrr", "spearman", "ndcg_at_10", "mrr_at_10", "recall_at_10", "recall_at_100"),
    "completion": ("negative_perplexity", "exact_match"),
}
# Losses of --task=embedding, which compare all samples of the global batch or not; those that need a number for each
# pair, a teacher's scores of the candidates, or hard negatives.
COMPARING, OWN = ("in_batch", "symmetric", "cosent"), ("triplet", "cosine", "margin_mse", "kl")
SCORED, TAUGHT, WITH_NEGATIVES = ("cosent", "cosine"), ("margin_mse", "kl"), ("triplet", "margin_mse", "kl")
# Scores of queries over the documents of --eval_corpus, or of each text over the others of a file of pairs.
RANKING = ("ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10", "recall_at_100")
_OF_TEXTS = ("classification", "multi_label", "regression", "embedding")
_EMBEDDING = {"task": ("embedding",)}
_TEXTS, _COMPLETION, _ANSWERS = (
    {"task": tasks} for tasks in ((*_OF_TEXTS, "completion"), ("completion",), ("question_answering",))
)
_RERANKERS = ("classification", "regression")
_WITH_COLUMNS = {"task": (*_TEXTS["task"], "token_classification")}


@dataclass(frozen=True)
class FineTuningConfig:
    """Fine-tuning: labelled files, and how the best checkpoint is chosen; for every --task except pretraining."""

    ON_RESUME = "named"

    train_file: str | None = flag(None, names="path", common=True)
    """Labelled examples: TSV, CSV, JSON, Parquet, Arrow, or a folder of `datasets`; CoNLL for token_classification;
    SQuAD's JSON for question_answering; for completion, prompts with completions, or JSON with lists of messages."""
    eval_file: str | None = flag(None, "Held-out examples, in the format of --train_file.", names="path")
    eval_corpus: str | None = flag(None, names="path", restrict={"task": ("embedding", *_RERANKERS)})
    """Documents with _id, title and text, as in BEIR. Then --eval_file has queries with _id and text, and the scores
    are those of rankings. --task=embedding ranks all documents, a classifier of pairs those that --eval_qrels names."""
    eval_qrels: str | None = flag(None, names="path")
    """Relevance of documents for queries: TSV as in BEIR, or lines as trec_eval reads them."""
    text_column: str | None = flag(None, restrict=_WITH_COLUMNS)
    """Column of the text: its name, or its number from 0. By default text or sentence; prompt with --task=completion.
    With --task=token_classification, the number of the column of words, by default 0."""
    text_pair_column: str | None = flag(None, "Column of the second text of a pair.", restrict={"task": _OF_TEXTS})
    label_column: str | None = flag(None, restrict=_WITH_COLUMNS)
    """Column of the label; by default label, completion with --task=completion, the last with token_classification."""
    header: bool = flag(True, "The first line of a TSV or CSV has the names of the columns.", restrict=_TEXTS)
    chat_template: str | None = flag(None, names="path", restrict=_COMPLETION)
    """File with a Jinja template as in transformers, for messages of --task=completion; by default the tokenizer's."""
    label_separator: str = flag("|", restrict={"task": ("multi_label",)})
    """Text between the labels of an example with --task=multi_label; JSONL can have lists."""
    skip_bad_rows: bool = flag(False, restrict={"task": (*_WITH_COLUMNS["task"], "question_answering")})
    """Leave out examples that can't be read, and print their number; by default the first one ends the run."""
    glue_task: str | None = flag(None, choices=GLUE_TASKS)
    """Task of GLUE whose files are read, instead of --train_file and the columns; sets --task and --best_metric."""
    glue_dir: str | None = flag(None, "Folder with the files of --glue_task, such as train.tsv.", names="path")
    tokenizer_dir: str | None = flag(None, names="path", on_resume="local")
    """Folder of a tokenizer or of prepared data; by default the tokenizer beside the initial weights."""
    doc_stride: int = flag(128, minimum=1, restrict=_ANSWERS)
    """Tokens from the beginning of a window of a long context to the beginning of the next window."""
    max_query_length: int = flag(64, "Most tokens of a question; the rest is cut.", minimum=1, restrict=_ANSWERS)
    max_answer_length: int = flag(30, "Most words of an answer.", minimum=1, on_resume="free", restrict=_ANSWERS)
    n_best: int = flag(20, minimum=1, on_resume="free", restrict=_ANSWERS)
    """Answers that predictions.jsonl lists for each question."""
    null_score_threshold: float = flag(0.0, on_resume="free", restrict=_ANSWERS)
    """Give no answer if the score of no answer exceeds the best answer's by more than this; for SQuAD 2.0."""
    embedding_loss: str = flag("in_batch", choices=(*COMPARING, *OWN), restrict=_EMBEDDING)
    """Loss of --task=embedding. in_batch: find each text's partner among all texts of the global batch. symmetric: in
    both directions. cosent, cosine: numbers say how alike pairs are; cosent takes only their order. triplet: a negative
    is farther than the partner. margin_mse, kl: a teacher's scores of the candidates."""
    temperature: float | None = flag(None, above=0, restrict=_EMBEDDING | {"embedding_loss": (*COMPARING, "kl")})
    """Number that divides the scores in the loss of --task=embedding; by default 0.05, and 1 for kl."""
    margin: float = flag(0.2, above=0, restrict=_EMBEDDING | {"embedding_loss": ("triplet",)})
    """Least difference between the distances, 1 - cosine, of a negative and of the partner: the loss is 0 beyond."""
    matryoshka_dims: str | None = flag(None, restrict=_EMBEDDING)
    """Lengths such as 64,128,256: the loss is the mean over the first so many numbers of the vectors, normalized, and
    whole vectors (arXiv 2205.13147)."""
    negative_columns: tuple[str, ...] = flag((), restrict=_EMBEDDING)
    """Columns of hard negatives; a cell of JSON may have a list. By default negative, negative_1, negatives, neg."""
    negatives: int | None = flag(None, minimum=0, maximum=1000, restrict=_EMBEDDING)
    """Most hard negatives of a training sample; by default as many as a row of --train_file has."""
    best_metric: str | None = flag(None, on_resume="free")
    """Score that chooses the best checkpoint; higher is better. By default the first score of the task."""
    early_stopping: int = flag(0, minimum=0, on_resume="free")
    """End the run after this number of evaluations in a row without a better --best_metric; 0: never."""
    seeds: int = flag(1, minimum=1, maximum=1000, on_resume="local")
    """Runs with the seeds --seed, --seed + 1 and so on, in OUTPUT_DIR/seed_N; prints mean and spread of scores."""

    def compares_samples(self, task: str) -> bool:
        """Whether the loss of a task compares all samples of the global batch."""
        return task == "embedding" and self.embedding_loss in COMPARING

    def scorings(self, width: int) -> int:
        """Returns how often the loss computes the scores of all pairs of samples, given the length of the vectors."""
        return {"in_batch": 1, "symmetric": 2}.get(self.embedding_loss, 0) * len(self.widths(width))

    @property
    def score_temperature(self) -> float:
        """Number that divides scores of embeddings."""
        return self.temperature or (1.0 if self.embedding_loss == "kl" else 0.05)

    def widths(self, width: int) -> tuple[int, ...]:
        """Returns the lengths of embeddings in the loss, up to the whole `width`; raises ValueError for wrong flags."""
        if self.matryoshka_dims is None:
            return (width,)
        dims = tuple(map(int, self.matryoshka_dims.split(",")))
        if not all(low < high for low, high in itertools.pairwise((0, *dims))) or dims[-1] > width:
            raise ValueError(self.matryoshka_dims)
        return tuple(dict.fromkeys((*dims, width)))


def scores_of(settings: FineTuningConfig, task: str) -> tuple[str, ...]:
    """Returns the names of a task's scores; the first one chooses the best checkpoint by default."""
    if not settings.eval_corpus:
        return METRICS.get(task, ())
    return RANKING + (METRICS[task] if task in _RERANKERS else ())


def problems(settings: FineTuningConfig, task: str, family: str, mode: str, mix: str | None) -> Iterator[Problem]:
    """Yields every reason to refuse the flags of fine-tuning, and --mix, of a run in a mode, without reading files."""
    if task == "pretraining":
        yield from superfluous(settings, vars(settings), "remove this flag, or add a --task other than pretraining")
        return
    yield from restricted(settings, {"task": task})
    objective = FAMILIES[family].objective if family in FAMILIES else None
    takes_any = task == "embedding" or is_class_name(task)
    if objective not in (None, "causal" if task == "completion" else "masked") and not takes_any:
        others = "pretraining, completion or embedding" if objective == "causal" else "another task"
        other = listed("causal" if task == "completion" else "masked")
        yield Problem("task", task, f"expected {others}, or use --model_family={other}")
    if task == "completion" and settings.chat_template and not Path(settings.chat_template).is_file():
        yield refused(settings, "chat_template", "expected a file with a template")
    if settings.glue_task:
        if not settings.glue_dir:
            expected = f"expected the folder with the files of --glue_task={settings.glue_task}"
            yield refused(settings, "glue_dir", expected)
        names = ("train_file", "eval_file", "text_column", "text_pair_column", "label_column", "eval_corpus")
        yield from superfluous(settings, names, f"remove this flag: --glue_task={settings.glue_task} sets it")
    elif settings.glue_dir:
        yield refused(settings, "glue_dir", "remove this flag, or add --glue_task")
    given = [name for name in ("glue_task", "train_file") if getattr(settings, name)]
    if mix and (given or is_class_name(task)):
        one = "the class of --task reads one file" if is_class_name(task) else f"--{given[0]} names the training file"
        yield Problem("mix", mix, f"remove this flag: {one}")
    elif not given and not mix and mode != "evaluate":
        expected = "expected a file of labelled examples, or --mix, or --glue_task and --glue_dir"
        yield refused(settings, "train_file", expected)
    if settings.eval_corpus:
        for name in ("eval_file", "eval_qrels"):
            if not getattr(settings, name):
                yield refused(settings, name, f"expected it with --eval_corpus={settings.eval_corpus}")
    else:
        yield from superfluous(settings, ("eval_qrels",), "remove this flag, or add --eval_corpus")
    if settings.early_stopping and not (settings.eval_file or settings.glue_task):
        yield refused(settings, "early_stopping", "expected 0 without --eval_file")
