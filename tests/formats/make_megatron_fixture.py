"""Writes a small random BERT of Megatron core with its outputs: a fixture of `test_outputs`. It needs no GPU.

python3 -m venv build/torch && build/torch/bin/pip install torch==2.13.0 megatron-core==0.16.1 einops numpy
build/torch/bin/python tests/formats/make_megatron_fixture.py
"""

import argparse
import contextlib
import os
import shutil
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).parent / "data/megatron"
SIZES = {"num_layers": 2, "hidden_size": 24, "num_attention_heads": 4, "ffn_hidden_size": 40}
PADDED_VOCABULARY, POSITIONS = 40, 20


def main() -> None:
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1", CUDA_VISIBLE_DEVICES="")
    torch.cuda.current_device = lambda: "cpu"
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    from megatron.core import parallel_state
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel()
    random.get_cuda_rng_tracker().fork = lambda *_, **__: contextlib.nullcontext()
    config = TransformerConfig(
        **SIZES,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
    )
    model = BertModel(
        config=config,
        num_tokentypes=2,
        transformer_layer_spec=bert_layer_local_spec,
        vocab_size=PADDED_VOCABULARY,
        max_sequence_length=POSITIONS,
        share_embeddings_and_output_weights=True,
    ).eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.3)
        ids = torch.randint(0, PADDED_VOCABULARY, (3, 16))
        mask = (torch.arange(16)[None] < torch.tensor([[16], [11], [5]])).long()
        types = ((torch.arange(16)[None] >= 6) & (mask > 0)).long()
        words, pairs = model(ids, mask, tokentype_ids=types)
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "iter_0000010/mp_rank_00").mkdir(parents=True)
    args = argparse.Namespace(
        **SIZES,
        max_position_embeddings=POSITIONS,
        padded_vocab_size=PADDED_VOCABULARY,
        layernorm_epsilon=config.layernorm_epsilon,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        init_method_std=0.02,
        bias_gelu_fusion=False,
        params_dtype=torch.float32,
    )
    state = {"args": args, "checkpoint_version": 3.0, "iteration": 10, "model": model.state_dict()}
    torch.save(state, FOLDER / "iter_0000010/mp_rank_00/model_optim_rng.pt")
    (FOLDER / "latest_checkpointed_iteration.txt").write_text("10")
    arrays = {"input_ids": ids, "input_mask": mask, "segment_ids": types, "mlm_logits": words, "nsp_logits": pairs}
    np.savez_compressed(FOLDER / "expected.npz", **{name: value.numpy() for name, value in arrays.items()})


if __name__ == "__main__":
    main()
