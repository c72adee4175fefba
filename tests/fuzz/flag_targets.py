"""The fuzz target of the command line: flagfiles that include each other, damaged."""

from tests.fuzz.harness import LONGEST_MESSAGE, Target
from tests.fuzz.mutations import mutate
from tftrain.cli import flags
from tftrain.config.fields import ConfigError
from tftrain.config.train import TrainConfig

LINES = (
    *("# a comment", "", "--hidden_size=64", "--nohuge_pages", "--learning_rate=1e-3", "--synthetic_data", "--help_"),
    *("--max_steps=many", "--seed=" + "9" * 5000, "--hidden_dropout_prob=nan", "--output_dir=out", "stray", "--"),
    *("--precision=fp8", "--batch_rampup=1:2:3", "--vocab_size=-1", "--vocab_size", "--undefok=x", "--masked_lm_prob="),
    *("--flagfile={folder}/a", "--flagfile={folder}/b", "-flagfile={folder}", "--flagfile", "--flagfile={folder}/gone"),
)


class Flagfile(Target):
    """Flagfiles; every problem is one line, and the configuration answers for what was accepted."""

    name, clean = "flagfile", (ConfigError,)

    def damage(self, rng, folder):
        for name in "ab":
            chosen = [LINES[number] for number in rng.integers(len(LINES), size=int(rng.integers(1, 8)))]
            content = "\n".join(chosen).format(folder=folder).encode()
            (folder / name).write_bytes(mutate(rng, content) if rng.random() < 0.3 else content)
        return ""

    def use(self, folder):
        config, problems, _ = flags.read(
            TrainConfig, ["tftrain.run", f"--flagfile={folder}/a", f"--flagfile={folder}/b"]
        )
        found = [*problems, *config.problems(1)]
        for problem in found:
            assert str(problem).isprintable(), problem
            assert len(str(problem)) < LONGEST_MESSAGE
        if problems:
            raise ConfigError(problems[:1])
