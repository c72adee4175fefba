"""Writes small random models of transformers with their outputs: the fixtures of `test_hugging_face`.

    python3 -m venv build/torch && build/torch/bin/pip install torch==2.13.0 transformers==5.23.0 numpy
    build/torch/bin/python tests/formats/make_transformers_fixtures.py [FIXTURE ...]     # without names, all

hf_modernbert..., hf_roberta... to hf_distilbert... and the greedy tokens are by transformers 5.24.0; hf_llama, hf_qwen2
and hf_qwen3 by 5.18.0.

Weights are wide enough that a wrong order, a missing bias or another GeLU shows in the outputs.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).parent / "data"
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
SPECIAL = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENDINGS = {"MaskedLM": "", "Model": "_model", "SequenceClassification": "_classes"}  # classes and fixtures end so
ENDINGS |= {"TokenClassification": "_tokens", "QuestionAnswering": "_answers"}
MODERNBERT = {role: f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")}
ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
WORDS = [*SPECIAL, *"abcdefghijklmnopqrstuvwxyz", "##s", "##ed", "##ing"]


def main(names: list[str]) -> None:
    defaults()
    decoders = {
        "hf_llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, False),
        "hf_qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, True),
        "hf_qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, True),
    }
    for name, (cls, config_class, tied) in decoders.items():
        if not names or name in names:
            torch.manual_seed(7)
            llama(name, cls, config_class, tied)
    labels = {"id2label": {0: "bad", 1: "fine", 2: "good"}, "label2id": {"bad": 0, "fine": 1, "good": 2}}
    encoders = {
        "hf_modernbert": (transformers.ModernBertForMaskedLM, {}),
        "hf_modernbert_classes": (transformers.ModernBertForSequenceClassification, labels),
        "hf_modernbert_mean": (
            transformers.ModernBertForSequenceClassification,
            {"classifier_pooling": "mean", **labels},
        ),
        "hf_modernbert_tokens": (transformers.ModernBertForTokenClassification, labels),
        "hf_modernbert_answers": (transformers.ModernBertForQuestionAnswering, {}),
    }
    for name, (cls, more) in encoders.items():
        if not names or name in names:
            torch.manual_seed(7)
            modernbert(name, cls, **more)
    for prefix, stem, kinds in (
        ("hf_roberta", "Roberta", ENDINGS),
        ("hf_xlm_roberta", "XLMRoberta", ("MaskedLM", "SequenceClassification")),
        ("hf_camembert", "Camembert", ("MaskedLM", "TokenClassification")),
        ("hf_distilbert", "DistilBert", ENDINGS),
    ):
        for kind in kinds:
            name = prefix + ENDINGS[kind]
            if not names or name in names:
                torch.manual_seed(7)
                more = labels if kind.endswith("Classification") else {}
                cls = getattr(transformers, stem + (f"For{kind}" if kind != "Model" else kind))
                without_types(name, cls, getattr(transformers, f"{stem}Config"), **more)
    if names:
        return
    torch.manual_seed(7)
    bert("hf_bert", transformers.BertForPreTraining, "gelu")
    bert("hf_bert_masked_lm", transformers.BertForMaskedLM, "gelu_new")
    bert("hf_bert_model", transformers.BertModel, "gelu")
    bert("hf_megatron_bert", transformers.MegatronBertForPreTraining, "gelu", transformers.MegatronBertConfig)
    gpt2("hf_gpt2")
    bert("hf_bert_classes", transformers.BertForSequenceClassification, "gelu", **labels)
    bert("hf_bert_tokens", transformers.BertForTokenClassification, "gelu", **labels)
    bert("hf_bert_answers", transformers.BertForQuestionAnswering, "gelu")


def defaults() -> None:
    """Writes the fields of a configuration that states none."""
    classes = (transformers.BertConfig, transformers.MegatronBertConfig, transformers.GPT2Config)
    classes += (transformers.LlamaConfig, transformers.Qwen2Config, transformers.Qwen3Config)
    classes += (transformers.ModernBertConfig, transformers.RobertaConfig, transformers.XLMRobertaConfig)
    classes += (transformers.CamembertConfig, transformers.DistilBertConfig)
    values = {each.model_type: {**each().to_dict(), "transformers_version": None} for each in classes}
    (FOLDER / "transformers_defaults.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


def randomize(model: torch.nn.Module, deviation: float = 0.3) -> None:
    with torch.no_grad():
        for name, value in model.named_parameters():
            is_scale = (
                name.endswith("norm.weight") or "LayerNorm.weight" in name or ("ln_" in name and "weight" in name)
            )
            value.normal_(1.0 if is_scale else 0.0, deviation)


def save(name: str, model, **arrays) -> Path:
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(folder / "expected.npz", **{key: np.asarray(value) for key, value in arrays.items()})
    return folder


def bert(name: str, cls, act: str, config_class=transformers.BertConfig, **more) -> None:
    config = config_class(
        vocab_size=len(WORDS), max_position_embeddings=20, hidden_act=act, layer_norm_eps=1e-12, **SIZES, **more
    )
    model = cls(config).eval()
    randomize(model)
    ids = torch.randint(0, len(WORDS), (3, 16))
    mask = (torch.arange(16)[None] < torch.tensor([[16], [11], [5]])).long()
    types = ((torch.arange(16)[None] >= 6) & (mask > 0)).long()
    with torch.no_grad():
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        found = model(**inputs)
        last = getattr(model, "bert", model)(**inputs).last_hidden_state
    arrays = {"input_ids": ids, "input_mask": mask, "segment_ids": types, "hidden": last}
    for ours, theirs in (
        ("mlm_logits", "prediction_logits"),
        ("mlm_logits" if "MaskedLM" in cls.__name__ else "task_logits", "logits"),
        ("nsp_logits", "seq_relationship_logits"),
        ("pooled", "pooler_output"),
    ):
        if theirs in found:
            arrays[ours] = found[theirs]
    if "start_logits" in found:
        arrays["task_logits"] = torch.stack([found["start_logits"], found["end_logits"]], -1)
    folder = save(name, model, **arrays)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)


def gpt2(name: str) -> None:
    tokenizer = byte_pairs()
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=24, n_layer=2, n_head=3, n_inner=40, n_positions=20, layer_norm_epsilon=1e-5
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    randomize(model)
    ids = torch.randint(0, len(tokenizer), (3, 16))
    with torch.no_grad():
        found = model(input_ids=ids, output_hidden_states=True)
    # transformers' last hidden state is after the final norm.
    folder = save(name, model, input_ids=ids, hidden=found.hidden_states[-1], logits=found.logits)
    tokenizer.save_pretrained(folder)


def llama(name: str, cls, config_class, tied: bool) -> None:
    """A Llama with everything that can go wrong, and the gradients of its summed loss, computed in fp64."""
    tokenizer = byte_pairs()
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling = {"rope_theta": 100.0, "original_max_position_embeddings": 16, **scaling}
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=40,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6} if tied else scaling,
        tie_word_embeddings=tied,
        **({"head_dim": 10} if name == "hf_qwen3" else {}),
        attn_implementation="eager",
    )
    model = cls(config).eval()
    randomize(model)
    ids = torch.randint(0, len(tokenizer), (3, 16))
    model.double()
    found = model(input_ids=ids, output_hidden_states=True)
    torch.nn.functional.cross_entropy(
        found.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
    ).backward()
    gradients = {f"gradient/{key}": value.grad.float() for key, value in model.named_parameters()}
    arrays = {"hidden": found.hidden_states[-1], "logits": found.logits}
    model.float()
    folder = save(name, model, input_ids=ids, **gradients, **{key: value.detach() for key, value in arrays.items()})
    tokenizer.save_pretrained(folder)
    model.generation_config.eos_token_id = None
    found = model.generate(ids[:, :7], attention_mask=torch.ones_like(ids[:, :7]), max_new_tokens=512, do_sample=False)
    np.savez_compressed(folder / "greedy.npz", prompts=ids[:, :7], tokens=found[:, 7:].short())


def modernbert(name: str, cls, **more) -> None:
    """A ModernBERT whose windows hide most of a sequence, and its gradients, computed in fp64."""
    tokenizer = byte_pairs(MODERNBERT)
    ids_of = {"bos": "[CLS]", "cls": "[CLS]", "eos": "[SEP]", "sep": "[SEP]", "pad": "[PAD]"}
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        num_hidden_layers=5,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=64,
        local_attention=6,
        attn_implementation="sdpa",  # in fp64, eager has no number for a query without keys
        **{f"{each}_token_id": tokenizer.convert_tokens_to_ids(token) for each, token in ids_of.items()},
        **more,
    )
    model = cls(config).eval()
    randomize(model, 0.2)
    encoder(name, model, tokenizer)


def without_types(name: str, cls, config_class, **more) -> None:
    """A model of RoBERTa's kind, or a DistilBERT, and its gradients, computed in fp64."""
    roberta = config_class is not transformers.DistilBertConfig
    if roberta:
        tokenizer = byte_pairs(ROBERTA) if config_class is transformers.RobertaConfig else pieces()
        sizes = {"type_vocab_size": 1, "layer_norm_eps": 1e-5, **SIZES}
    else:
        tokenizer = words()
        sizes = {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
    ids_of = {f"{each}_token_id": getattr(tokenizer, f"{each}_token_id") for each in ("pad", "bos", "eos")}
    config = config_class(
        vocab_size=len(tokenizer), max_position_embeddings=20, **sizes, **(ids_of if roberta else {}), **more
    )
    model = cls(config).eval()
    randomize(model)
    encoder(name, model, tokenizer, left=cls.__name__.endswith("Model"))


def encoder(name: str, model, tokenizer, left: bool = False) -> None:
    """Writes an encoder with its outputs and its gradients; `left`: the last row has its padding before the text."""
    ids, pad = torch.randint(0, len(tokenizer), (3, 16)), model.config.pad_token_id
    ids[ids == pad] += 1  # Its embedding has no gradient there.
    mask = (torch.arange(16)[None] < torch.tensor([[16], [11], [5]])).long()
    if left:
        mask[2] = mask[2].flip(0)
    if model.config.model_type != "modernbert":
        ids[mask == 0] = pad
    model.double()
    found = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    arrays = {"input_ids": ids, "input_mask": mask, "hidden": found.hidden_states[-1].detach()}
    if left:
        arrays |= {"pooled": found.pooler_output.detach()} if "pooler_output" in found else {}
    elif type(model).__name__.endswith("MaskedLM"):
        arrays["mlm_logits"] = found.logits.detach()
        loss = torch.nn.functional.cross_entropy(
            found.logits[:, [1, 4]].flatten(0, 1), ids[:, [2, 3]].flatten(), reduction="sum"
        )
    else:
        logits = found.logits if "logits" in found else torch.stack([found["start_logits"], found["end_logits"]], -1)
        arrays["task_logits"] = logits.detach()
        loss = (logits if logits.dim() == 2 else logits * mask[..., None]).square().sum()
    if not left:
        loss.backward()
        arrays |= {f"gradient/{key}": value.grad.float() for key, value in model.named_parameters()}
    model.float()
    tokenizer.save_pretrained(save(name, model, **arrays))


def words():
    path = FOLDER / "vocab.txt"
    path.write_text("".join(f"{word}\n" for word in WORDS))
    made = transformers.BertTokenizer(str(path), do_lower_case=True)
    path.unlink()
    return made


def pieces():
    """A Unigram tokenizer with XLM-R's tokens, whose padding has id 1."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    letters = "abcdefghijklmnopqrstuvwxyzéß"
    vocabulary = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    vocabulary += [(f"\u2581{letter}", -4.0) for letter in letters] + [(letter, -5.0) for letter in letters]
    made = Tokenizer(models.Unigram([*vocabulary, ("\u2581the", -2.0), ("\u2581", -3.0), ("<mask>", 0.0)], unk_id=3))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokens = {f"{role}_token": token for role, token in ROBERTA.items()}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", **tokens)


def byte_pairs(tokens: dict[str, str] | None = None):
    """Byte pairs of a decoder; or of an encoder with these special tokens, by their roles."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=270,
        special_tokens=[*tokens.values()] if tokens else ["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(["the model of the weights of the words"], trainer)
    if tokens:
        first, last = tokens["cls"], tokens["sep"]
        between = f"{last}:0" if first == "[CLS]" else f"{last}:0 {last}:0"  # RoBERTa has two between texts.
        made.post_processor = processors.TemplateProcessing(
            single=f"{first}:0 $A:0 {last}:0",
            pair=f"{first}:0 $A:0 {between} $B:0 {last}:0",
            special_tokens=[(token, made.token_to_id(token)) for token in (first, last)],
        )
        named = {f"{role}_token": token for role, token in tokens.items()}
        named |= {} if first == "[CLS]" else {"bos_token": first, "eos_token": last}
        return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **named)
    end = "<|endoftext|>"
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token=end, eos_token=end, unk_token=end)


if __name__ == "__main__":
    main(sys.argv[1:])
