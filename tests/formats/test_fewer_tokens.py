"""Models with a part of their vocabulary: equal hidden states for the tokens that stay, and usable by programs."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.formats.models import DATA, build
from tests.formats.test_convert import run
from tests.kit import programs, runs
from tftrain.config.convert import Place
from tftrain.formats.registry import open_weights

TEXTS = {
    "hf_bert": "a b as\nthe as\n",
    "hf_gpt2": "the cat sat on\n\nthe mat\n",
    "hf_llama": "the cat sat on the mat\n",
    **dict.fromkeys(("hf_modernbert", "hf_roberta", "hf_xlm_roberta", "hf_distilbert"), "the cat sat on the mat\n"),
}


def cut(capsys, tmp_path, name, *arguments, text=None):
    (tmp_path / "text.txt").write_text(TEXTS[name] if text is None else text)
    given = [f"--from=hf:{DATA / name}", f"--to=hf:{tmp_path / 'cut'}", f"--keep_tokens_of={tmp_path / 'text.txt'}"]
    return run(capsys, *given, *arguments)


def hidden_and_logits(weights, ids):
    model = build(weights)
    batch = {"input_ids": tf.constant([ids], tf.int32), "input_mask": tf.ones([1, len(ids)], tf.int32)}
    batch["segment_ids"] = tf.zeros_like(batch["input_ids"])
    found = model.named_outputs(batch, None, weights.parts)
    return found["last_hidden_state"].numpy(), found["logits"].numpy()


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_of_tokens_that_stay_has_the_same_hidden_states(capsys, tmp_path, name):
    code, said = cut(capsys, tmp_path, name)
    assert code == 0, said
    before, after = (open_weights(Place("hf", str(folder))) for folder in (DATA / name, tmp_path / "cut"))
    old, new = (weights.tokenizer.vocabulary.tokens for weights in (before, after))
    assert len(new) == after.model.vocab_size < before.model.vocab_size
    kept = [old.index(token) for token in new]
    assert kept == sorted(kept)
    lines = TEXTS[name].split("\n")
    for ids, theirs in zip(after.tokenizer.build()(lines), before.tokenizer.build()(lines), strict=True):
        assert [kept[number] for number in ids] == theirs.tolist()
    ids = np.random.default_rng(0).integers(0, len(new), 8)
    hidden, logits = hidden_and_logits(after, ids)
    expected, all_logits = hidden_and_logits(before, np.take(kept, ids))
    np.testing.assert_array_equal(hidden, expected)
    np.testing.assert_allclose(logits, all_logits[..., kept], rtol=1e-5, atol=1e-6)
    config, theirs = (json.loads((each / "config.json").read_text()) for each in (tmp_path / "cut", DATA / name))
    of_encoder = [
        field for field in theirs if field.endswith("_token_id") and field in config and "<|endoftext|>" not in old
    ]
    assert [new[config[field]] for field in of_encoder] == [old[theirs[field]] for field in of_encoder]
    assert "<|endoftext|>" not in old or new[config["eos_token_id"]] == "<|endoftext|>"


def test_rows_that_pad_the_table_stay_for_a_multiple_of_64_and_a_count_keeps_frequent_tokens(capsys, tmp_path):
    *tokens, _ = (DATA / "hf_bert/vocab.txt").read_text().splitlines()  # so one of the table's rows has no token
    (tmp_path / "words").mkdir()
    (tmp_path / "words/vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    least = 5 + 26 + 1  # special tokens, letters, and one inside a word
    given = (f"--tokenizer_dir={tmp_path / 'words'}", f"--keep_tokens={least}")
    code, said = cut(capsys, tmp_path, "hf_bert", *given, text="as as bed\n")
    assert code == 0, said
    after = open_weights(Place("hf", str(tmp_path / "cut")))
    assert after.model.vocab_size == least + 1
    assert set(tokens) - set(after.tokenizer.vocabulary.tokens) == {"[unused0]", "##ed"}


def test_a_count_alone_keeps_the_first_tokens(capsys, tmp_path):
    code, said = run(capsys, f"--from=hf:{DATA / 'hf_gpt2'}", f"--to=tftrain:{tmp_path / 'cut'}", "--keep_tokens=262")
    assert code == 0, said
    after = open_weights(Place("tftrain", str(tmp_path / "cut")))
    before = open_weights(Place("hf", str(DATA / "hf_gpt2")))
    assert after.model.vocab_size == 262
    old, new = before.tokenizer.vocabulary.tokens, after.tokenizer.vocabulary.tokens
    assert [old.index(token) for token in new] == list(range(262))


@pytest.mark.slow
def test_a_smaller_model_is_fine_tuned_predicts_and_is_converted(capsys, tmp_path):
    assert cut(capsys, tmp_path, "hf_bert")[0] == 0
    model, table = f"hf:{tmp_path / 'cut'}", tmp_path / "train.tsv"
    table.write_text("text\tlabel\n" + "a bas\ta\nx\tb\n" * 8)
    args = (
        *(f"--init_checkpoint={model}", "--task=classification", f"--train_file={table}", f"--eval_file={table}"),
        *(f"--output_dir={tmp_path / 'run'}", "--max_steps=1", "--global_batch_size=8", "--eval_every=-1"),
        "--max_seq_length=16",
    )
    assert runs.train(runs.checked(*args, base=())) == 0
    programs.done("predict", f"--output_dir={tmp_path / 'run'} -- 'a bas'")
    programs.done("predict", f"--init_checkpoint={model} -- 'a [MASK]'")
    programs.done("convert", f"--from=tftrain:{tmp_path / 'run'} --to=hf:{tmp_path / 'back'}")
    size = json.loads((tmp_path / "back/config.json").read_text())["vocab_size"]
    assert size == len((tmp_path / "cut/vocab.txt").read_text().splitlines())
