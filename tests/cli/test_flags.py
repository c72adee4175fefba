"""The command line: types, every problem at once, flagfiles, help."""

import dataclasses
import subprocess
import sys

import pytest

from tftrain import run
from tftrain.cli import flags
from tftrain.config import mixture
from tftrain.config.convert import ConvertConfig
from tftrain.config.fields import ConfigError, flag_values, sections
from tftrain.config.model import ModelConfig
from tftrain.config.parallel import BatchConfig
from tftrain.config.predict import PredictConfig
from tftrain.config.prepare import PrepareConfig
from tftrain.config.train import TrainConfig
from tftrain.families import FAMILIES
from tftrain.host.exit_codes import ExitCode
from tftrain.launching.config import LaunchConfig


def parse(*args):
    return flags.parse(TrainConfig, ["tftrain.run", *args])


def problems_of(*args):
    with pytest.raises(ConfigError) as caught:
        parse(*args)
    return [str(problem) for problem in caught.value.problems]


def test_defaults_without_arguments():
    assert parse() == TrainConfig()


def test_a_family_has_defaults_of_its_own_which_the_command_line_overrides():
    model = parse("--model_family=llama", "--hidden_dropout_prob=0.2").model
    found = (model.position_embedding, model.activation, model.bias, model.tie_output)
    assert found == ("rotary", "swiglu", "none", False)
    assert (model.hidden_dropout_prob, model.attention_probs_dropout_prob) == (0.2, 0.0)
    assert parse("--model_family=gpt").model == dataclasses.replace(ModelConfig(), model_family="gpt")


def test_every_restriction_and_default_of_a_family_is_a_flag_of_the_model():
    names = {field.name for field in dataclasses.fields(ModelConfig)}
    for family in FAMILIES.values():
        assert {*family.values, *family.defaults} <= names
        assert all(value in family.values.get(name, (value,)) for name, value in family.defaults.items())


def test_values_reach_their_section_with_their_type():
    args = ["--hidden_size=64", "--learning_rate", "2e-3", "--nosparse_as_dense", "--precision=bf16", "--output_dir=o"]
    config, problems, given = flags.read(TrainConfig, ["tftrain.run", *args])
    assert (problems, given) == ([], {"hidden_size", "learning_rate", "sparse_as_dense", "precision", "output_dir"})
    assert (config.model.hidden_size, config.optimizer.learning_rate) == (64, 2e-3)
    assert (config.compute.sparse_as_dense, config.compute.precision, config.run.output_dir) == (False, "bf16", "o")


def test_a_line_of_any_length_or_content_is_one_short_line_of_the_message():
    (found,) = problems_of("--hidden_size=" + "9" * 10_000)
    assert found.startswith("--hidden_size=999")
    assert len(found) < 1000
    (found,) = problems_of("--hidden_size=1\n2\x1b[2J")
    assert found.startswith(r"--hidden_size=1\n2\x1b[2J: expected")


def test_thousands_of_problems_are_counted_not_printed(capsys):
    with pytest.raises(ConfigError) as caught:
        parse(*(f"--no_such_{number}=1" for number in range(5000)))
    with pytest.raises(SystemExit):
        flags.refuse("tftrain.run", caught.value)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == flags.MAX_PROBLEMS + 2
    assert lines[-2] == f"tftrain.run: and {5000 - flags.MAX_PROBLEMS} more problems"


@pytest.mark.parametrize(
    ("stated", "resolved"),
    [
        ((None, None, None), (8, 1, 32)),
        ((4, None, None), (4, 1, 16)),
        ((4, 3, None), (4, 3, 48)),
        ((None, None, 64), (16, 1, 64)),
        ((None, 2, 64), (8, 2, 64)),
        ((4, None, 64), (4, 4, 64)),
        ((4, 4, 64), (4, 4, 64)),
    ],
)
def test_two_batch_sizes_give_the_third(stated, resolved):
    assert BatchConfig(*stated).resolve(4) == BatchConfig(*resolved)


@pytest.mark.parametrize(
    ("stated", "ranks", "expected", "offered"),
    [
        ((4, 2, 64), 4, "--micro_batch_size=4 x --grad_accum_steps=2 x 4 data parallel ranks, which is {}", [32]),
        ((4, 2, 60), 3, "--micro_batch_size=4 x --grad_accum_steps=2 x 3 data parallel ranks, which is {}", [24]),
        ((None, None, 63), 4, "a multiple of 4 data parallel ranks, such as {} or {}", [60, 64]),
        ((None, None, 64), 3, "a multiple of 3 data parallel ranks, such as {} or {}", [63, 66]),
        ((None, None, 2), 3, "a multiple of 3 data parallel ranks, such as {}", [3]),
        ((4, None, 64), 3, "a multiple of --micro_batch_size=4 x 3 data parallel ranks, such as {} or {}", [60, 72]),
        ((None, 3, 64), 4, "a multiple of --grad_accum_steps=3 x 4 data parallel ranks, such as {} or {}", [60, 72]),
        ((128, None, 64), 4, "a multiple of --micro_batch_size=128 x 4 data parallel ranks, such as {}", [512]),
    ],
)
def test_batch_sizes_that_contradict_name_those_that_are_given_and_the_nearest(stated, ranks, expected, offered):
    with pytest.raises(ConfigError) as caught:
        BatchConfig(*stated).resolve(ranks)
    assert str(caught.value) == f"--global_batch_size={stated[2]}: expected {expected.format(*offered)}"
    for size in offered:
        BatchConfig(stated[0], None, size).resolve(ranks)


@pytest.mark.parametrize(
    ("most", "total", "rampup", "ranks", "fitted"),
    [
        (4, 48, "none", 4, (4, 3)),
        (4, 48, "none", 3, (4, 4)),
        (4, 28, "none", 2, (2, 7)),
        (5, 28, "none", 1, (4, 7)),
        (64, 24, "none", 2, (12, 1)),
        (4, 14, "none", 7, (2, 1)),
        (8, 48, "16:16:1000", 2, (8, 3)),
        (8, 48, "12:12:1000", 2, (6, 4)),
    ],
)
def test_a_fitted_micro_batch_divides_every_batch_and_is_no_larger_than_stated(most, total, rampup, ranks, fitted):
    batch = BatchConfig(most, None, total, batch_rampup=rampup, fit_micro_batch=True).resolve(ranks)
    assert (batch.micro_batch_size, batch.grad_accum_steps) == fitted


@pytest.mark.parametrize(
    ("stated", "rampup", "reason"),
    [
        ((4, None, 32), "none", "--global_batch_size=32: expected it to be divisible by 3 data parallel ranks"),
        (
            (4, None, 36),
            "12:8:1000",
            "and all sizes of --batch_rampup=12:8:1000 to be divisible by 3 data parallel ranks",
        ),
        ((4, 1, 36), "none", "without --grad_accum_steps"),
        ((None, None, 36), "none", "expected --global_batch_size and --micro_batch_size"),
        ((4, None, 36), "much", "--batch_rampup=much: expected none"),
    ],
)
def test_a_micro_batch_that_can_not_be_fitted_is_refused_with_the_reason(stated, rampup, reason):
    with pytest.raises(ConfigError) as caught:
        BatchConfig(*stated, batch_rampup=rampup, fit_micro_batch=True).resolve(3)
    assert reason in str(caught.value)


def test_help_that_cannot_be_printed_ends_without_a_traceback():
    command = [sys.executable, "-m", "tftrain.run", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_no_flag_name_is_used_twice():
    names = [name for section in sections(TrainConfig()) for name in section.__dataclass_fields__]
    assert len(names) == len(set(names))


def test_wrong_flags_end_the_run_before_tensorflow_loads():
    wrong = ("--precision=fp8", "--data_dir=nowhere", "--vocab_size=many", "--output_dir=README.md", "--max_step=3")
    command = [sys.executable, "-X", "importtime", "-m", "tftrain.run", *wrong]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == ExitCode.WRONG_FLAGS
    assert "tftrain.run: --precision=fp8: expected one of fp32, fp16, bf16" in done.stderr
    assert all(f"tftrain.run: {flag}" in done.stderr for flag in wrong)
    assert "tensorflow" not in "".join(line for line in done.stderr.splitlines() if line.startswith("import time"))


def test_only_rank_0_speaks(monkeypatch, capsys):
    waited = []
    monkeypatch.setattr(flags.time, "sleep", waited.append)
    for name, value in (("RANK", "1"), ("SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    with pytest.raises(SystemExit) as ended:
        run.main(["tftrain.run", "--precision=fp8"])
    assert (ended.value.code, waited) == (ExitCode.WRONG_FLAGS, [flags.RANK_0_PRINT_SECONDS])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("config_class", "argument", "expected"),
    [
        (PrepareConfig, "--output_dir=~/x", "{home}/x"),
        (PrepareConfig, "--output_dir=~", "{home}"),
        (PrepareConfig, "--output_dir=./~", "./~"),
        (PrepareConfig, "--output_dir=a~/~b", "a~/~b"),
        (PrepareConfig, "--output_dir=$PLACE/${PLACE}x", "/p q/tftrain//p q/tftrainx"),
        (PrepareConfig, "--vocab_file=~/tok/vocab.txt", "{home}/tok/vocab.txt"),
        (PrepareConfig, "--input_files=~/a,$PLACE/*.txt,~", ("{home}/a,/p q/tftrain/*.txt,{home}",)),
        (PrepareConfig, "--input_files=file://~/a", ("file://{home}/a",)),
        (PrepareConfig, "--input_files=https://host/$NOT_SET_1?$top=~", ("https://host/$NOT_SET_1?$top=~",)),
        (ConvertConfig, "--from=hf:~/bert", "hf:{home}/bert"),
        (ConvertConfig, "--to=tftrain:${PLACE}", "tftrain:/p q/tftrain"),
        (TrainConfig, "--init_checkpoint=hf:~/bert", "hf:{home}/bert"),
        (TrainConfig, "--mix=a=0.5:~/a, b=1: ~/$PLACE", "a=0.5:{home}/a, b=1: {home}//p q/tftrain"),
        (TrainConfig, "--phases=until_samples=9 data_dir=~/a;mix=b", "until_samples=9 data_dir={home}/a;mix=b"),
        (TrainConfig, "--output_dir=s3://bucket/$PLACE", "s3://bucket//p q/tftrain"),
        (TrainConfig, "--resume=~/run/step_1", "{home}/run/step_1"),
        (TrainConfig, "--machine_file=~/m.json", "{home}/m.json"),
        (PredictConfig, "--input_file=~/t.txt", "{home}/t.txt"),
        (LaunchConfig, "--hostfile=~/hosts", "{home}/hosts"),
    ],
)  # fmt: skip
def test_a_path_means_in_every_flag_what_it_means_for_a_shell(tmp_path, monkeypatch, config_class, argument, expected):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLACE", "/p q/tftrain")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    (tmp_path / "lines.flags").write_text(argument)
    name = argument[2:].partition("=")[0]
    for given in (argument, "--flagfile=~/lines.flags", "--flagfile=$HOME/lines.flags"):
        values = flag_values(flags.parse(config_class, ["x", given]))
        value = values[name if name in values else f"{name}_"]
        words = expected if isinstance(expected, tuple) else (expected,)
        assert (value if isinstance(value, tuple) else (value,)) == tuple(
            each.replace("{home}", str(tmp_path)) for each in words
        )


def test_a_variable_that_is_not_set_is_no_part_of_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in ("--output_dir=$NOT_SET_1/x", "--input_files=a,${NOT_SET_1}", "--flagfile=$NOT_SET_1"):
        with pytest.raises(ConfigError, match="the variable NOT_SET_1 is not set; set it, or write the path out"):
            flags.parse(PrepareConfig, ["prepare", given])
    with pytest.raises(ConfigError, match="expected no quotes here, which only a shell removes"):
        flags.parse(PrepareConfig, ["prepare", "--output_dir='~/x'"])
    (tmp_path / "a$NOT_SET_1.txt").touch()
    config = flags.parse(PrepareConfig, ["prepare", "--input_files=a$NOT_SET_1.txt,b"])
    assert config.input_files == ("a$NOT_SET_1.txt,b",)


def test_lines_of_a_mixture_have_paths_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mix").write_text("a=1:~/a\nb=2:$HOME/b # comment\n")
    assert [source.path for source in mixture.read(str(tmp_path / "mix"))] == [f"{tmp_path}/a", f"{tmp_path}/b"]
