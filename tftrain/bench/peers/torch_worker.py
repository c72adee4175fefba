"""The process that runs Hugging Face's training step when asked: a model on torch, and torch's fused AdamW.

bf16 is torch's autocast over fp32 weights, and gradients are clipped to a global norm of 1, both as in Hugging Face's
Trainer. BertForPreTraining always computes the logits of all tokens; ModernBertForMaskedLM those of the masked ones.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tftrain.bench.peers import task
from tftrain.bench.worker import serve

IGNORED = -100  # the label of a token that is not to be predicted


def build(settings: dict[str, Any]) -> Callable[[int], list[float]]:
    """Builds the step; settings hold task, batches, precision, threads, jit (torch compiles the model) and longest.

    With `longest`, a batch is as long as its longest example, as Hugging Face's data collators pad it. Otherwise it has
    the length of the task.
    """
    import torch

    torch.set_num_threads(settings["threads"])
    torch.manual_seed(1)
    family = task.TASKS[settings["task"]].family
    model = make_model(family)
    model.train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=task.LEARNING_RATE, weight_decay=task.WEIGHT_DECAY, fused=True)
    forward = torch.compile(model) if settings["jit"] else model
    arrays = [model_inputs(batch, settings.get("longest", False), family) for batch in task.batches(settings)]
    inputs = [{name: torch.from_numpy(value) for name, value in batch.items()} for batch in arrays]

    def step(batch: Any) -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=settings["precision"] == "bf16"):
            loss = forward(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return loss.item()

    return task.turns(step, inputs)


def make_model(family: str):
    """Returns the model of a family with its published dropout and, of ModernBERT, its fastest form on CPUs."""
    import transformers

    sizes = task.SIZES[family]
    if family == task.MODERNBERT:
        settings = {"vocab_size": task.VOCAB, "sparse_prediction": True, "attn_implementation": "sdpa"}
        ids = dict.fromkeys((f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep")), 0)
        return transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**settings, **sizes, **ids))
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), task.DROPOUT)
    config = transformers.BertConfig(vocab_size=task.VOCAB, hidden_act="gelu_new", **sizes, **dropout)
    return transformers.BertForPreTraining(config)


def model_inputs(batch: task.Batch, longest: bool, family: str = task.BERT) -> task.Batch:
    """Returns a batch in the standard format as the model's arguments, int64; as short as possible if `longest`."""
    labels = np.full(batch["input_ids"].shape, IGNORED)
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    labels[rows, batch["masked_lm_positions"][rows, slots]] = batch["masked_lm_ids"][rows, slots]
    end = batch["input_mask"].sum(axis=1).max() if longest else labels.shape[1]
    of_tokens = {"input_ids": batch["input_ids"], "attention_mask": batch["input_mask"], "labels": labels}
    pairs = {"token_type_ids": batch["segment_ids"]} if family == task.BERT else {}
    inputs = {name: value[:, :end].astype(np.int64) for name, value in (of_tokens | pairs).items()}
    return inputs | ({"next_sentence_label": batch["next_sentence_labels"].astype(np.int64)} if pairs else {})


if __name__ == "__main__":
    serve(build)
