"""Hard negatives for pairs of texts: texts of a corpus that a model finds near to an anchor, and that are not its own.

The limit of their nearness follows the nearness of the positive (Moreira et al., arXiv 2407.15831, "TopK-PercPos").
"""

import logging
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.predict import PredictFlags
from tftrain.finetune import examples
from tftrain.finetune.corpus_search import nearest
from tftrain.finetune.tables import FileNotes
from tftrain.inference import input_texts
from tftrain.inference.task_predictions import TaskPredictions

logger = logging.getLogger(__name__)


def mined(run: TaskPredictions, settings: PredictFlags, columns: FineTuningConfig) -> Iterator[dict[str, str]]:
    """Yields anchor, positive and negatives of each pair of --input_file that has enough of them, in the file's order.

    A text is no negative of an anchor if it is that anchor, or its positive in any pair of the file.

    Args:
        run: gives the vectors of texts.
        columns: has --input_file as the training file, and the names of its columns.

    Raises:
        DataError: a file can't be read.
    """
    notes, few = FileNotes(), 0
    pairs = list(dict.fromkeys(each.texts[:2] for each in examples.read_examples(columns, "embedding", "train", notes)))
    for level, text in notes:
        logger.log(level, text)
    own, positives = defaultdict(set), dict.fromkeys(positive for _, positive in pairs)
    for anchor, positive in pairs:
        own[anchor] |= {anchor, positive}
    texts = (
        text for _, text in input_texts.read(settings.mine, "embedding", FineTuningConfig(train_file=settings.mine))
    )
    corpus = list(positives if settings.mine == settings.input_file else dict.fromkeys(filter(str.strip, texts)))
    documents = list(dict.fromkeys((*corpus, *positives)))
    rows, places = ({text: number for number, text in enumerate(each)} for each in (own, documents))
    vectors, found = run.vectors(documents, 1), run.vectors(list(own), 0)[[rows[anchor] for anchor, _ in pairs]]
    nearness = np.einsum("nd,nd->n", found, vectors[[places[positive] for _, positive in pairs]])
    limits = nearness - settings.mine_margin * np.abs(nearness)
    nearest_texts = nearest(found, vectors[: len(corpus)], settings.mine_depth + max(map(len, own.values())))
    for number, ((anchor, positive), limit, near) in enumerate(zip(pairs, limits, nearest_texts, strict=True)):
        scored = zip(*near, strict=True)
        others = [(score, corpus[index]) for score, index in scored if corpus[index] not in own[anchor]]
        chosen = [text for score, text in others[settings.mine_skip : settings.mine_depth] if score <= limit]
        if len(chosen) < settings.mine_negatives:
            few += 1
            continue
        if settings.mine_sampling == "random":
            random = np.random.default_rng([settings.seed, number])
            chosen = [chosen[index] for index in sorted(random.permutation(len(chosen))[: settings.mine_negatives])]
        negatives = {f"negative_{index}": text for index, text in enumerate(chosen[: settings.mine_negatives], 1)}
        yield {"anchor": anchor, "positive": positive} | negatives
    if few:
        remedy = "raise --mine_depth, or lower --mine_negatives or --mine_margin"
        logger.warning(f"{few} of {len(pairs)} pairs have fewer negatives and are left out; {remedy}")
