"""The configuration of `tftrain.predict`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tftrain.config.fields import Problem, field_problems, flag, refused, superfluous
from tftrain.config.model_source import ModelSource

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class PredictFlags:
    """What is predicted, and how it is printed."""

    input_file: str | None = flag(None, names="path")
    """UTF-8 file with one text a line, instead of arguments; - is standard input. A tab separates a pair of texts."""
    format: str = flag("text", choices=("text", "jsonl"))
    """Format of the output. text: lines for each text and its predictions. jsonl: a JSON object for each text."""
    top_k: int | None = flag(None, minimum=1, maximum=1000)
    """Candidates for each masked token or for the next token, classes or answers of a fine-tuned model; by default 5.
    With --temperature, also the number of most probable tokens of which one is drawn; by default all."""
    embedding: str | None = flag(None, choices=("mean", "cls", "last", "max"))
    """Print the vector of each text instead of predictions; for a pair, the cosine of both vectors. mean, max: of the
    hidden states of its tokens. cls, last: that of its first or last token. By default, a model of --task=embedding
    prints its own vectors, and others none."""
    text_prompt: str | None = flag(None)
    """Text before each text that becomes a vector, or before the first one of a pair; by default the model's."""
    batch_size: int = flag(32, "Texts that the model reads at once.", minimum=1, maximum=65536)
    max_new_tokens: int = flag(0, minimum=0, maximum=65536)
    """Tokens that a decoder appends to each text; fewer if its end token comes. Each is the most probable token or,
    with --temperature, drawn."""
    temperature: float = flag(0.0, minimum=0)
    """Divide the logits of a decoder by this, and draw each new token; 0: take the most probable token."""
    top_p: float = flag(1.0, above=0, maximum=1)
    """With --temperature, draw from the fewest most probable tokens that together have this probability."""
    seed: int = flag(0, minimum=0)
    """Seed of drawn tokens or negatives. Those of a text depend on the seed and on the text's number."""
    stop: tuple[str, ...] = flag((), "String before which a decoder's continuation ends; repeat the flag for several.")
    chat: bool = flag(False)
    """Each text is a user's message. The model's chat template makes it a prompt, and says where the answer ends."""
    mine: str | None = flag(None, names="path")
    """Print hard negatives for the pairs of --input_file: texts of this file, or the positives if it is --input_file.
    Each line is a sample for --train_file: anchor, positive, negative_1 and so on. For encoders."""
    mine_negatives: int = flag(5, "Negatives of each pair; pairs with fewer are left out.", minimum=1, maximum=100)
    mine_skip: int = flag(0, "Texts nearest to an anchor that are left out: perhaps positives.", minimum=0)
    mine_depth: int = flag(100, "Nearest texts, those left out included, that may be negatives.", minimum=1)
    mine_margin: float = flag(0.05, minimum=0)
    """A negative's score is at most the positive's, less this share of it: nearer texts may be further positives."""
    mine_sampling: str = flag("top", "Take the nearest ones, or draw them by --seed.", choices=("top", "random"))
    max_seq_length: int | None = flag(None, minimum=8)
    """Most tokens of a text for a fine-tuned model; by default as in its run, or as the model allows."""
    null_score_threshold: float | None = flag(None)
    """Give no answer if the score of no answer exceeds the best answer's by more than this; by default every question
    gets an answer. For question_answering models that were trained with unanswerable questions."""

    @property
    def shown(self) -> int:
        """How many candidates, classes or answers are shown."""
        return self.top_k or 5

    def problems(self, texts: int) -> Iterator[Problem]:
        """Yields every reason to refuse these flags with so many texts among the arguments."""
        yield from field_problems(self)
        path = self.input_file
        if not self.max_new_tokens:
            yield from superfluous(self, ("temperature", "stop", "chat"), "remove this flag, or add --max_new_tokens")
        if not self.temperature:
            names = ("top_p", "seed") if self.mine_sampling == "top" else ("top_p",)
            yield from superfluous(self, names, "remove this flag, or add --temperature")
        if self.mine:
            others = ("top_k", "max_new_tokens", "null_score_threshold")
            yield from superfluous(self, others, "remove this flag: --mine predicts nothing")
            if not path:
                yield refused(self, "input_file", "expected a file of pairs for --mine")
        else:
            mining = ("mine_negatives", "mine_skip", "mine_depth", "mine_margin", "mine_sampling")
            yield from superfluous(self, mining, "remove this flag, or add --mine")
        if self.mine_depth - self.mine_skip < self.mine_negatives:
            expected = f"expected at least the sum of --mine_skip and --mine_negatives={self.mine_negatives}"
            yield refused(self, "mine_depth", expected)
        if "" in self.stop:
            yield Problem("stop", "", "expected at least one character")
        if not path and not texts:
            yield refused(self, "input_file", "expected texts as arguments, or a file with one text a line")
        elif path and texts:
            yield refused(self, "input_file", "expected either texts as arguments or a file, not both")
        elif path and path != STANDARD_INPUT and not Path(path).exists():
            yield refused(self, "input_file", "no such file; expected one with one text a line")
        elif path and Path(path).is_dir() and not self.mine:
            yield refused(self, "input_file", "a folder; expected a file with one text a line")


@dataclass(frozen=True)
class PredictConfig:
    """A model, and what it predicts."""

    source: ModelSource = field(default_factory=ModelSource)
    predict: PredictFlags = field(default_factory=PredictFlags)

    def problems(self, texts: int) -> list[Problem]:
        """Returns every reason to refuse this configuration; see `PredictFlags.problems`."""
        return [*self.source.problems(), *self.predict.problems(texts)]
