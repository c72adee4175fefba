"""Learns a vocabulary from word counts: WordPiece with the library `tokenizers`, or a sentencepiece unigram model.

Both learners read only the distinct words and their counts. So the memory depends on the number of distinct words, and
the result does not depend on the number of worker processes.
"""

import io
from collections import Counter
from collections.abc import Iterator

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tftrain.input.errors import DataError
from tftrain.input.normalization import LONGEST_WORD
from tftrain.input.vocabulary import SPECIAL_TOKENS, Vocabulary, check_tokens
from tftrain.prepare.alphabet import Alphabet, choose_alphabet

_LONGEST_TOKEN = 30
# The learner counts words itself, so each is given as often as it occurs. Larger counts are divided.
_WORDS = 10_000_000
_WORDS_AT_ONCE = 1000
# Fixed, because the rounding of sums depends on the number of threads.
_SENTENCEPIECE_THREADS = 2


def learn_wordpiece(counts: Counter, vocab_size: int) -> Vocabulary:
    """Learns a WordPiece vocabulary with the trainer of `tokenizers`.

    The first tokens are the special tokens and the characters that `choose_alphabet` takes, the frequent ones first.
    Then the trainer joins the two neighbouring pieces that occur most often, again and again (Sennrich et al.,
    arXiv 1508.07909), and each result is a token. If the text has too few different words, the vocabulary is smaller;
    `alphabet.vocabulary_warnings` says why.

    Raises:
        DataError: the text has no words.
    """
    alphabet = choose_alphabet(counts, vocab_size)
    if not alphabet.characters:
        raise DataError("the text has no words to learn a vocabulary from")
    vocabulary = _learn_with(alphabet, counts, vocab_size)
    if len(vocabulary) < vocab_size and len(alphabet.characters) < alphabet.different:
        # There is space for the rare characters too, and for the words that have them.
        vocabulary = _learn_with(choose_alphabet(counts, vocab_size, 1.0), counts, vocab_size)
    return vocabulary


def _learn_with(alphabet: Alphabet, counts: Counter, vocab_size: int) -> Vocabulary:
    """Learns a vocabulary whose characters are those of an alphabet."""
    # The trainer gives ids to its special tokens in their order, and breaks ties between pairs by ids.
    first = (*SPECIAL_TOKENS, *alphabet.tokens)
    words = _learner_words(counts, set(alphabet.characters), max(30_000, 4 * vocab_size))
    trainer = trainers.BpeTrainer(
        # The trainer also adds characters that occur inside words alone, as if they began one.
        vocab_size=vocab_size + len(alphabet.characters),
        special_tokens=list(first),
        continuing_subword_prefix="##",
        max_token_length=_LONGEST_TOKEN,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    tokenizer.train_from_iterator(_repeated(words), trainer)
    ids = tokenizer.get_vocab()
    learned = [token for token in sorted(ids, key=ids.__getitem__) if len(token.removeprefix("##")) > 1]
    return Vocabulary(tuple(dict.fromkeys((*first, *learned)))[:vocab_size], "wordpiece")


def _learner_words(counts: Counter, characters: set[str], limit: int) -> list[tuple[str, int]]:
    """Returns the `limit` most frequent words of the characters, without words of one, and their counts."""
    words = [
        (word, count)
        for word, count in counts.items()
        if 1 < len(word) <= LONGEST_WORD and characters.issuperset(word)
    ]
    return sorted(words, key=lambda item: (-item[1], item[0]))[:limit]


def _repeated(words: list[tuple[str, int]]) -> Iterator[str]:
    """Yields texts that have each word as often as its count says, or a share of that, and at least once."""
    divisor = max(1, sum(count for _, count in words) / _WORDS)
    for word, count in words:
        left = max(1, round(count / divisor))
        while left > 0:
            yield " ".join([word] * min(left, _WORDS_AT_ONCE))
            left -= _WORDS_AT_ONCE


def learn_sentencepiece(counts: Counter, vocab_size: int, lower_case: bool) -> tuple[Vocabulary, bytes]:
    """Trains a sentencepiece unigram model (Kudo 2018, arXiv 1804.10959) of words that are separated by spaces.

    Returns:
        The vocabulary and the serialized model, which contains no path.

    Raises:
        DataError: the text is too small for so many pieces.
    """
    words = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    model = io.BytesIO()
    pad, unk, cls, sep, mask = SPECIAL_TOKENS
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in words),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece=pad,
            unk_piece=unk,
            bos_piece=cls,
            eos_piece=sep,
            control_symbols=[mask],
            character_coverage=0.9995,
            hard_vocab_limit=False,
            num_threads=_SENTENCEPIECE_THREADS,
            normalization_rule_name="nmt_nfkc_cf" if lower_case else "nmt_nfkc",
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().split("\n")[-1]
        raise DataError(
            f"--vocab_size={vocab_size}: sentencepiece cannot learn so many pieces from {len(counts)} different "
            f"words ({reason}); use a smaller --vocab_size or more text"
        ) from error
    content = model.getvalue()
    return sentencepiece_vocabulary(content, "the learned sentencepiece model"), content


def sentencepiece_vocabulary(model: bytes, path: str) -> Vocabulary:
    """Returns the vocabulary of a serialized sentencepiece model; `path` is its file, for the error message.

    Raises:
        DataError: the bytes are not a sentencepiece model, or `check_tokens` refuses its pieces.
    """
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
        pieces = tuple(processor.id_to_piece(number) for number in range(processor.get_piece_size()))
    except (RuntimeError, OSError, UnicodeDecodeError) as error:
        expected = "expected the .model file that its trainer writes"
        raise DataError(f"{path}: not a sentencepiece model; {expected}") from error
    check_tokens(pieces, path, "sentencepiece")
    return Vocabulary(pieces, "sentencepiece")
