"""`tftrain.export`: variants, ONNX, what is left out and named; tests/inference/serving has the signatures."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.formats.models import DATA
from tests.test_predict import BERT, GPT, Drawn, load, sentencepiece
from tftrain import export
from tftrain.config.predict import PredictFlags
from tftrain.inference import candidates, trained_model
from tftrain.inference.serving import exported_folder, report, saved_model, signatures
from tftrain.inference.serving.signatures import ServedModel
from tftrain.inference.serving.text_graph import TextGraph
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.tokenizer_files import Tokenizer

__all__ = ["sentencepiece"]

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def run(capsys, *arguments):
    """Runs the program; returns its exit code and what it said."""
    try:
        code = export.main(["export", *map(str, arguments)])
    except SystemExit as error:
        code = error.code
    return code, "".join(capsys.readouterr())


def exported(capsys, folder, *arguments):
    code, text = run(capsys, f"--to={folder}", *arguments)
    assert code == 0, text
    return text


def token_features(expected):
    names = {"input_ids": "input_ids", "input_mask": "input_mask", "token_type_ids": "segment_ids"}
    return {ours: expected[theirs].astype(np.int32) for ours, theirs in names.items()}


@pytest.mark.parametrize(
    ("variant", "dtype"), [pytest.param("bf16", tf.bfloat16, marks=pytest.mark.nightly), ("int8", tf.int8)]
)
def test_smaller_variants_hold_small_weights_and_stay_near_and_missing_heads_are_named(
    capsys, tmp_path, variant, dtype
):
    (tmp_path / "model").mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(DATA / "hf_bert_masked_lm" / file, tmp_path / "model")
    source = f"hf:{tmp_path / 'model'}"
    text = exported(capsys, tmp_path / "out", f"--init_checkpoint={source}", f"--variant={variant}")
    assert "the model has no pooler, so nothing of it is exported" in text
    assert "no signature takes text: no tokenizer is beside the weights" in text
    stored = tf.train.load_checkpoint(str(tmp_path / "out/1/variables/variables"))
    dtypes = [each for name, each in stored.get_variable_to_dtype_map().items() if name.startswith("variables_read")]
    names = load(source).network.named_variables()
    tables = [name for name in names if name.endswith("kernel") or name == "embeddings/word"]
    # next_sentence/kernel is in no signature.
    assert dtypes.count(dtype) == (len(tables) - 1 if variant == "int8" else len(names) - 2)
    expected = np.load(DATA / "hf_bert_masked_lm/expected.npz")
    functions = tf.saved_model.load(str(tmp_path / "out/1")).signatures
    assert set(functions) == {"encode", "masked_lm", "serving_default"}
    assert set(functions["encode"].structured_outputs) == {"hidden_states"}
    found = functions["encode"](**{name: tf.constant(value) for name, value in token_features(expected).items()})
    real = expected["input_mask"].astype(bool)
    error = np.abs(found["hidden_states"].numpy() - expected["hidden"])[real]
    scale = np.abs(expected["hidden"][real]).max()
    # Rounding to 8 bits errs by 2^-9 in bf16, and by 2^-8 of the largest weight in int8; layers add to it.
    assert 0 < error.max() < 0.1 * scale


@pytest.mark.parametrize(("name", "tables"), [("hf_gpt2", 1), ("hf_llama", 2)], ids=["tied", "untied"])
def test_the_output_layer_of_a_decoder_is_in_8_bits_too(name, tables):
    from tftrain.inference.serving.quantized import quantize

    model = load(f"hf:{DATA / name}")
    expected = signatures.next_token(ServedModel(model, None, 5)).function(tf.constant([[5, 6, 7]]))["logits"]
    quantize(model.network)
    traced = signatures.next_token(ServedModel(model, None, 5)).traced
    of_words = [
        each.dtype for each in traced.variables if each.shape[0] == model.config.vocab_size and each.shape[1] > 1
    ]
    assert of_words == [tf.int8] * tables
    found = traced(input_ids=tf.constant([[5, 6, 7]]))["logits"]
    assert 0 < np.abs(found - expected).max() < 0.1 * np.abs(expected).max()


def test_weights_in_8_bits_err_by_half_a_step_of_their_channel():
    from tftrain.inference.serving.quantized import QuantizedTable

    matrix = np.random.default_rng(2).normal(size=(50, 7)).astype(np.float32) * np.arange(7, dtype=np.float32)
    for axis in (0, 1):
        table = QuantizedTable(tf.Variable(matrix), axis)
        step = np.abs(matrix).max(axis=axis, keepdims=True) / 127
        assert (np.abs(tf.convert_to_tensor(table) - matrix) <= step * 0.501).all()
        assert np.abs(table.values.numpy()).max() == 127
    np.testing.assert_array_equal(tf.gather(table, [3, 0, 3]), tf.gather(tf.convert_to_tensor(table), [3, 0, 3]))


def write(tmp_path, model):
    source = ServedModel(model, TextGraph(model), 4)
    exported_folder.write_saved_models(tmp_path, source, signatures.signatures(source))


@pytest.mark.parametrize("op", [b"SentencepieceOp", b"NormalizeUTF8"])
def test_a_tokenizer_that_needs_tensorflow_text_is_in_a_model_beside(tmp_path, monkeypatch, sentencepiece, op):
    builders = {"encode": signatures.encode, "masked_tokens": signatures.masked_tokens}
    monkeypatch.setattr(signatures, "OF_ENCODERS", builders)
    own = sentencepiece if op == b"SentencepieceOp" else tokenizer_files.read(DATA / "hf_xlm_roberta")
    model = trained_model.with_weights(Drawn(own))
    write(tmp_path, model)
    bare, whole = (tf.saved_model.load(str(tmp_path / folder)).signatures for folder in ("1", "text/1"))
    assert set(bare) == {"encode", "serving_default"}
    assert set(whole) == {*bare, "masked_tokens"}
    assert [op in (tmp_path / folder / "saved_model.pb").read_bytes() for folder in ("1", "text/1")] == [False, True]
    text = f"\uff45very {own.vocabulary.of_role('mask')} layer"
    (sample,) = trained_model.TextEncoder(model)([text])
    (expected,) = candidates.masked_tokens(model, top_k=4)([sample])
    found = whole["masked_tokens"](text=tf.constant([text]))["tokens"].numpy()
    assert [[token.decode() for token in row] for row in found] == [[each.token for each in row] for row in expected]


def test_a_decoder_with_words_in_the_graph_names_the_next_token(tmp_path, monkeypatch):
    monkeypatch.setattr(signatures, "OF_DECODERS", {"next_tokens": signatures.next_tokens})
    vocabulary = load(BERT).tokenizer.vocabulary
    model = trained_model.with_weights(Drawn(Tokenizer(vocabulary, True, "bert"), model_family="gpt"))
    write(tmp_path, model)
    texts = ["a b c", "", "x " * 30]
    samples = trained_model.TextEncoder(model)(texts)
    expected = candidates.next_tokens(model, PredictFlags(top_k=4))(samples)
    found = tf.saved_model.load(str(tmp_path / "1")).signatures["next_tokens"](text=tf.constant(texts))
    for each, tokens in zip(expected, found["tokens"].numpy(), strict=True):
        assert [candidate.token for candidate in each.candidates] == [token.decode() for token in tokens]


def test_a_runtime_of_onnx_gives_the_outputs_of_the_trained_model(capsys, tmp_path):
    """With what transformers sends, which may have no row or no token."""
    runtime = pytest.importorskip("onnxruntime")
    exported(capsys, tmp_path / "out", f"--init_checkpoint={BERT}", "--format=onnx", "--input_names=transformers")
    expected = np.load(DATA / "hf_bert/expected.npz")
    theirs = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    features = {name: expected[own].astype(np.int64) for name, own in theirs.items()}
    part = {name: value[:1, :5] for name, value in features.items()}
    model, real = load(BERT).network, expected["input_mask"].astype(bool)
    hidden, _ = model.encode(trained_model.encoder_batch(*(tf.constant(each, tf.int32) for each in part.values())))
    others = {"encode": hidden, "masked_lm": model.masked_lm(hidden, tf.range(5)[tf.newaxis])}
    for name, output, key in (("encode", "last_hidden_state", "hidden"), ("masked_lm", "logits", "mlm_logits")):
        session = runtime.InferenceSession(str(tmp_path / f"out/{name}.onnx"), providers=["CPUExecutionProvider"])
        inputs = [(each.name, each.type, each.shape) for each in session.get_inputs()]
        assert inputs == [(feature, "tensor(int64)", ["batch", "length"]) for feature in features]
        for shape in ((0, 4), (0, 0)):
            (found,) = session.run([output], dict.fromkeys(features, np.ones(shape, np.int64)))
            assert found.shape == (*shape, expected[key].shape[-1])
        (found,) = session.run([output], features)
        np.testing.assert_allclose(found[real], expected[key][real], rtol=1e-4, atol=1e-4)
        (found,) = session.run([output], part)
        np.testing.assert_allclose(found, others[name], rtol=1e-4, atol=1e-4)


def test_a_failure_leaves_nothing(capsys, tmp_path, monkeypatch):
    def fail(path, *_):
        path.mkdir()
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(saved_model, "write", fail)
    code, text = run(capsys, f"--to={tmp_path / 'out'}", f"--init_checkpoint={GPT}")
    assert code == 1
    assert text.splitlines()[-1].endswith("No space left on device; nothing was written")
    assert text.splitlines()[-1].startswith(f"export: --to={tmp_path / 'out'}: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly  # Shorter texts are compared by every export.
def test_an_export_is_compared_on_text_of_up_to_512_tokens(capsys, tmp_path):
    text = exported(capsys, tmp_path / "own", f"--init_checkpoint={BERT}")
    # 20 are the model's positions.
    assert "compared with the model in fp32, on 8 sequences of up to 20 tokens of text:" in text
    (tmp_path / "words.txt").write_text("a bed sings " * 100)
    text = exported(capsys, tmp_path / "given", f"--init_checkpoint={BERT}", f"--text_file={tmp_path / 'words.txt'}")
    assert f"of up to 20 tokens of text ({tmp_path / 'words.txt'}):" in text
    (tmp_path / "empty.txt").write_text("\n")
    code, text = run(capsys, f"--init_checkpoint={BERT}", f"--text_file={tmp_path / 'empty.txt'}", f"--to={tmp_path}/x")
    assert (code, text.splitlines()[-1][-29:]) == (1, "empty.txt: empty; expected a text"[-29:])


def test_the_sequences_of_a_comparison_are_the_text_in_order():
    def encode(texts):
        ids = np.array([int(word) for text in texts for word in text.split()], np.int32)
        return [trained_model.Sample(ids[:600], np.zeros(0, np.int64), max(len(ids) - 600, 0), 0, 0)]

    found = report.of_text(" ".join(map(str, range(2000))), encode, longest=4000)
    assert [len(each) for each in found] == [512, 512, 512, 464]
    np.testing.assert_array_equal(np.concatenate(found), np.arange(2000))
    batch = report.batch_of(found, ["input_ids", "input_mask"])
    np.testing.assert_array_equal(batch["input_mask"].sum(1), [512, 384, 256, 116])
