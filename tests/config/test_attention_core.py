"""`--attn_impl=auto`: the core by device, flags and data."""

import pytest

from tests.kit import runs
from tftrain.config.attention_core import chosen, of_packed_rows
from tftrain.config.compute import ComputeConfig
from tftrain.config.data import DataConfig
from tftrain.config.model import ModelConfig
from tftrain.config.parallel import ParallelConfig

BF16, PLAIN = "--precision=bf16", "--attention_probs_dropout_prob=0"
GPT, ALIBI = "--model_family=gpt", "--position_embedding=alibi"
HEADS = ("--hidden_size=64", "--num_attention_heads=2")  # 32 elements each


@pytest.mark.parametrize(
    ("flags", "length", "on_gpu", "on_cpu"),
    [
        ((BF16,), 128, "flash", "softmax"),
        ((BF16,), 511, "flash", "softmax"),
        ((BF16,), 512, "flash", "flash"),
        ((), 128, "flash", "flash"),  # fp32
        ((BF16, GPT), 128, "flash", "flash"),
        ((BF16, PLAIN), 128, "cudnn", "softmax"),
        ((BF16, PLAIN, GPT), 128, "cudnn", "flash"),
        ((PLAIN,), 512, "flash", "flash"),  # fp32
        ((BF16, PLAIN, "--deterministic"), 512, "flash", "flash"),
        ((BF16, PLAIN, "--jit_compile=false"), 512, "flash", "flash"),
        ((BF16, PLAIN, GPT, ALIBI), 512, "flash", "flash"),
        ((BF16, "--model_family=modernbert"), 128, "flash", "flash"),  # windows
        ((BF16, PLAIN, "--hidden_size=136", "--num_attention_heads=1"), 512, "flash", "flash"),
        ((BF16, PLAIN, "--hidden_size=264", "--num_attention_heads=1"), 512, "softmax", "softmax"),
        ((BF16, PLAIN, "--hidden_size=24"), 512, "softmax", "softmax"),
    ],
)
def test_auto_is_the_fastest_core_that_the_flags_allow(tmp_path, flags, length, on_gpu, on_cpu):
    more = (*HEADS, *flags, f"--max_seq_length={length}", f"--output_dir={tmp_path}")
    config = runs.configured(*more, "--attn_impl=auto")
    assert [config.attention(gpu).core for gpu in (True, False)] == [on_gpu, on_cpu]
    assert config.attention(True).lengths == (length,)
    named = runs.configured(*more, "--attn_impl=softmax")
    assert [named.attention(gpu).core for gpu in (True, False)] == ["softmax"] * 2


@pytest.mark.parametrize(
    ("flags", "core"),
    [(("--attn_impl=auto",), "flash"), ((), "softmax"), (("--attn_impl=auto", "--hidden_size=24"), "auto")],
)
def test_packed_rows_take_the_core_that_skips_what_they_hide(tmp_path, flags, core):
    assert of_packed_rows(runs.configured(*HEADS, *flags, f"--output_dir={tmp_path}").model) == core


def test_all_lengths_of_a_run_are_tried():
    data = DataConfig(max_seq_length=128, seq_length_buckets="32,64")
    choice = chosen(ModelConfig(), data, ComputeConfig(), ParallelConfig(), gpu=True)
    assert choice == ("softmax", (32, 64, 128))


def test_documents_of_a_row_exclude_cudnn():
    model = ModelConfig("gpt", attn_impl="auto", attention_probs_dropout_prob=0.0)
    for mask, core in ((True, "flash"), (False, "cudnn")):
        data = DataConfig(max_seq_length=128, document_mask=mask)
        assert chosen(model, data, ComputeConfig(precision="bf16"), ParallelConfig(), gpu=True).core == core
