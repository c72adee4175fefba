"""The process that runs Hugging Face's training step when asked: BertForPreTraining on torch, torch's fused AdamW.

bf16 is torch's autocast over fp32 weights, and gradients are clipped to a global norm of 1, both as in Hugging Face's
Trainer. The model always computes the logits of all tokens; it cannot compute only those of the masked tokens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tftrain.bench.peers import task
from tftrain.bench.worker import serve

IGNORED = -100  # the label of a token that is not to be predicted


def build(settings: dict[str, Any]) -> Callable[[int], list[float]]:
    """Builds the step; settings hold precision, threads and jit (whether torch compiles the model)."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.set_num_threads(settings["threads"])
    torch.manual_seed(1)
    model = BertForPreTraining(
        BertConfig(
            vocab_size=task.VOCAB,
            hidden_size=task.HIDDEN,
            num_hidden_layers=task.LAYERS,
            num_attention_heads=task.HEADS,
            intermediate_size=4 * task.HIDDEN,
            hidden_act="gelu_new",
            hidden_dropout_prob=task.DROPOUT,
            attention_probs_dropout_prob=task.DROPOUT,
        )
    )
    model.train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=task.LEARNING_RATE, weight_decay=task.WEIGHT_DECAY, fused=True)
    forward = torch.compile(model) if settings["jit"] else model
    inputs = {name: torch.from_numpy(value) for name, value in _inputs(task.batch()).items()}

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=settings["precision"] == "bf16"):
            loss = forward(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return loss.item()

    return task.turns(step)


def _inputs(batch):
    """Returns a batch in the standard format as the model's arguments, int64."""
    labels = np.full(batch["input_ids"].shape, IGNORED)
    np.put_along_axis(labels, batch["masked_lm_positions"].astype(np.int64), batch["masked_lm_ids"], axis=1)
    found = {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["input_mask"],
        "token_type_ids": batch["segment_ids"],
        "labels": labels,
        "next_sentence_label": batch["next_sentence_labels"],
    }
    return {name: value.astype(np.int64) for name, value in found.items()}


if __name__ == "__main__":
    serve(build)
