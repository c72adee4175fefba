"""The commands of the guides run, with small texts and models, and print the figures of the pages: nightly tests."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.kit import corpora
from tools import figures
from tools.figures import ROOT, Outputs
from tools.page_commands import blocks

GUIDES = [
    page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if "python -m" in page.read_text()
]

# Why a command does not run here, by what it contains.
SKIPPED = {
    r"s3://|gs://|/shared/": "an address or a folder of several hosts; tests/test_addresses_run.py",
    r"^(srun|mpirun|horovodrun|kubectl|docker|if)\b": "programs of clusters; tests/launching",
    r"-H \w": "several hosts; tests/hosts",
    r"^make |apt-get|git clone": "set-up; tools/figures.py runs `make train` and `make finetune`",
    r"FILE": "a part is left out",
    r"tftrain\.bench --(?!list)|tools/|timeit": "measurements; tests/bench",
    r"beam|^diff ": "Apache Beam; tests/prepare/test_beam.py",
    r"--table=all": "minutes; tests/plan",
    r"--(phases|mix)": "several sources of data; tests/train/test_phases.py, tests/test_mixture_run.py",
}
TRAINS = re.compile(r"tftrain\.(run|launch)\b(?!.*--mode=evaluate)")
SHORT = "--max_steps=2 --eval_every=1 --log_every=1 --checkpoint_every=1"
# How a command becomes small: patterns, and what stands in their place.
SMALL = (
    (r"'(linux-doc|manpages-ja|texts?)/[^']*'", "'text/*.txt'"),
    (r"--input_files=(text|more\.txt)(?=\s)", "--input_files='text/*.txt'"),
    (r"(--vocab_size)=\d+", r"\1=400"),
    (r"configs/(mini|base|large|x\w+|recipes/bert\w+)\.flags", "configs/tiny.flags"),
    (r"configs/(gpt2\w*|gpt_\w+|recipes/gpt2\w+)\.flags", "configs/gpt_tiny.flags"),
    (r"configs/(llama_\w+|qwen3_\w+|recipes/llama\w+)\.flags", "configs/llama_tiny.flags"),
    (r"configs/(modernbert_\w+|recipes/modernbert\w+)\.flags", "configs/modernbert_tiny.flags"),
    (r"configs/quickstart\.flags", "run.flags"),
    (r"(configs/gpt_\S+ .*)\.\.\.", r"\1--data_dir=small/causal --output_dir=runs/part"),
    (r"(--train_files.*)\.\.\.", r"\1--flagfile=configs/tiny.flags --global_batch_size=8 --output_dir=runs/records"),
    (r"(?<= )\.\.\.", "--flagfile=run.flags"),
    (r"(--data_dir)=data/(gpt\w*|llama\w*)", r"\1=small/causal"),
    (r"(--data_dir)=data\S*", r"\1=small/pairs"),
    (r"(--output_dir)=data(?=\s|$)", r"\1=data/page"),
    (r"-np \d+(?=.*pipeline_parallel_size)", "-np 4"),
    (r"-np (?!4\b)\d+", "-np 2"),
    (r"(--global_batch_size)=\d+", r"\1=8"),
    (r"(--micro_batch_size)=\d+", r"\1=2"),
    (r"(--batch_rampup)=\S+", r"\1=4:4:8"),
    (r"(--seq_length_buckets)=\S+", r"\1=16,32"),
    (r"(--max_seq_length)=\d+", r"\1=32"),
    (r"(--(?:warmup|decay)_steps)=\d+", r"\1=1"),
    (r"step_\d{8}", "step_00000002"),
    (r"choices\.py \d+", "choices.py 80"),
    (r"hf:FOLDER\b", "hf:bert"),
    (r"hf:llama\b", "hf:tests/formats/data/hf_llama"),
    (r"--chat ", ""),  # this model has no chat template
)


def small(command: str) -> str:
    """Returns a command with small sizes and two steps."""
    if "tftrain.plan" in command:
        return command
    for pattern, text in SMALL:
        command = re.sub(pattern, text, command)
    if "--objective=causal" in command:
        command = command.replace("--vocab_size=400", "--vocab_size=500")
    if TRAINS.search(command):
        batch = "" if re.search("batch_size|run.flags|--resume=runs", command) else " --global_batch_size=8"
        command = f"{command}{batch} {SHORT}"
    return command.replace("--max_steps=2 ", "--max_steps=4 ") if "--resume=runs" in command else command


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """A folder with texts, labelled files, prepared data and the model that the pages call build/quickstart/run."""
    outputs = Outputs(tmp_path_factory.mktemp("pages"))
    folder = outputs.folder
    (folder / "text").mkdir()
    for number in range(4):
        (folder / f"text/{number}.txt").write_text(corpora.text(documents=60, seed=number))
    rows = [{"text": f"{word} {word}", "label": word[0]} for word in corpora.WORDS[:32]]
    for name in ("train", "dev"):
        lines = "".join(f"{row['text']}\t{row['label']}\n" for row in rows)
        (folder / f"{name}.tsv").write_text(f"text\tlabel\n{lines}")
        chats = [{"prompt": row["text"], "completion": row["label"]} for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(chat)}\n" for chat in chats))
    flags = ("flagfile=configs/tiny.flags", "data_dir=small/pairs", "output_dir=runs/flags", "global_batch_size=8")
    flags += ("resume=none",)  # every page begins anew
    (folder / "run.flags").write_text("".join(f"--{flag}\n" for flag in flags))
    common = "--input_files='text/*.txt' --max_seq_length=32 --num_workers=1"
    for command in (
        f"python -m tftrain.prepare {common} --vocab_size=400 --output_dir=small/pairs",
        f"python -m tftrain.prepare {common} --vocab_size=500 --objective=causal --tokenizer_type=bpe "
        "--output_dir=small/causal",
        f"python -m tftrain.prepare {common} --vocab_size=400 --masking=static --output_dir=records",
        "python -m tftrain.run --flagfile=configs/tiny.flags --data_dir=small/pairs --global_batch_size=8 "
        f"--max_position_embeddings=64 --output_dir=build/quickstart/run {SHORT}",
        "python -m tftrain.convert --from=tftrain:build/quickstart/run --to=hf:bert",
    ):
        outputs[command]
    (folder / "vocab.txt").symlink_to(folder / "records/vocab.txt")
    return outputs


# `test_a_command_names_only_flags_of_its_program` of test_docs.py is the shorter one.
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_commands_of_a_page_run(page: Path, outputs):
    failed = []
    for block in blocks(page):
        if block.name:
            # The hook of hooks.md ends a run whose loss is small, as the loss of these texts is.
            (outputs.folder / block.name).write_text(block.text.replace("< 5.5", "< 0.5"))
        for command in block.commands:
            command = small(command)
            if not any(re.search(pattern, command) for pattern in SKIPPED):
                try:
                    outputs[command]
                except SystemExit as error:
                    failed.append(f"line {block.line}: {str(error)[-1500:]}")
    assert not failed, "\n\n".join(failed)


# `test_planned_figures_are_those_of_the_planner` of tools/test_figures.py is the shorter one.
@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
def test_measured_figures_are_those_of_the_commands(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["", "--check", f"--from={tmp_path}"])
    assert figures.main() == 0


def test_every_reason_to_skip_is_one_of_a_command():
    commands = [small(command) for page in GUIDES for block in blocks(page) for command in block.commands]
    unused = [pattern for pattern in SKIPPED if not any(re.search(pattern, command) for command in commands)]
    assert unused == []


def test_a_command_becomes_small():
    command = small("python -m tftrain.launch -np 8 --flagfile=configs/base.flags --data_dir=data/mine")
    assert command.endswith("--data_dir=small/pairs --global_batch_size=8 " + SHORT)
    assert "-np 2 --flagfile=configs/tiny.flags" in command
