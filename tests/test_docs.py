"""README and docs: links, flags and names in them exist, and the page of flags is complete."""

import dataclasses
import re
from pathlib import Path

import pytest

from tftrain.config.fields import flag_name, sections
from tools import flag_table

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FOLDERS = "tftrain|tests|tools|custom_ops|configs|docs"

# Flags of other programs that the pages name.
OTHER = {
    program: set(flags.split())
    for program, flags in {
        "absl": "flagfile help",
        "horovodrun": "blacklist-cooldown-range gloo host-discovery-script max-np min-np network-interfaces num-proc "
        "reset-limit start-timeout",
        "horovodrun and mpirun": "hostfile",
        "mpirun": "allow-run-as-root mca oversubscribe",
        "timeout": "preserve-status",
        "slurm": "batch cpus-per-task gpus-per-node kill-on-bad-exit mpi nodes ntasks ntasks-per-node open-mode "
        "requeue resv-ports signal time",
        "ray": "num-cpus",
        "hf": "include local-dir repo-type",
        "Apache Beam": "direct_num_workers direct_running_mode environment_config environment_type "
        "flink_job_server_jar flink_master job_endpoint number_of_worker_harness_threads parallelism project region "
        "service_port sdk_container_image temp_location",
        "apt-get": "no-install-recommends",
        "bazel": "action_env config",
        "XLA_FLAGS": "xla_cpu_enable_concurrency_optimized_scheduler xla_dump_to "
        "xla_gpu_all_reduce_combine_threshold_bytes xla_gpu_deterministic_ops xla_gpu_dot_merger_threshold_mb "
        "xla_gpu_enable_command_buffer xla_gpu_enable_cublaslt xla_gpu_enable_latency_hiding_scheduler "
        "xla_gpu_enable_triton_gemm",
        "Megatron-LM": "bias-gelu-fusion rampup-batch-size",
        "tests/crash_matrix": "kills layout",
        "tests/launched.py": "code seconds",
        "tools/compare_revisions.py": "base cases",
        "tools/layout_cases.py": "cases most",
        "tools/figures.py": "check from",
        "tools/page_picture.py": "width",
        "tools/finetune.py": "examples seeds steps",
        "tools/gpu_budget.py": "autotune_results programs",
        "tools/gpu_check.py": "library part platform rows tensorflow_python",
    }.items()
}
COMMAND = r"(?:\bpython3? -m tftrain[. ](\w+)|(?m:^)tftrain (\w+)|\b(?:python3? )((?:tools|tests)/\w+\.py))"
# Guides say what to do: measurements belong to results, history to git, and tests to CONTRIBUTING.
NOT_IN_GUIDES = (" load of ", "earlier version", "-m pytest")


def names(config_class: type) -> set[str]:
    """Returns the names of the flags of a configuration."""
    return {flag_name(field) for section in sections(config_class()) for field in dataclasses.fields(section)}


def flags_of_programs() -> set[str]:
    found = set().union(*OTHER.values(), *map(names, flag_table.PROGRAMS.values()))
    return found | {f"no{name}" for name in found}


# Most lines of a page; all pages together have at most ALL_LINES. A guide says what to do, what happens and why.
LINES = {
    **{"README": 105, "first_hour": 148, "architecture": 70, "recipes": 125, "migrate": 120, "glossary": 50},
    **{"data": 232, "data_reference": 175, "families": 90, "levers": 180, "optimizers": 75, "memory": 75},
    **{"finetuning": 110, "embeddings": 110, "custom_tasks": 130, "hooks": 50, "notebook": 50, "from_transformers": 70},
    **{"cluster": 220, "parallelism": 210, "elastic": 75, "planner": 150, "planner_model": 90, "checkpoints": 140},
    **{"checkpoint_format": 50, "reliability": 200, "security": 95, "troubleshooting": 120, "limits": 70},
    **{"versions": 35, "predict": 100, "export": 120, "formats": 80, "flags": 450, "api": 40, "kernels": 115},
    **{"benchmarks": 120, "developers": 200, "results/README": 25, "results/benchmarks": 60, "results/planner": 60},
    **{"results/parallelism": 60, "results/gpu/README": 90, "results/gpu/runs": 35, "results/gpu/budget": 30},
    **{"results/levers": 60, "results/optimizers": 60, "results/reliability": 60, "results/published": 35},
    **{"results/elastic": 15, "results/families": 25, "results/input": 40},
}
ALL_LINES = 5000


@pytest.fixture(params=NAMES)
def text(request):
    return (ROOT / request.param).read_text()


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Returns the targets of the links of a page that lead to other files or headings of the repository."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if not target.startswith("http")]


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings(name):
    page = ROOT / name
    broken = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert broken == []


def test_every_guide_is_linked_from_readme_and_every_page_of_results_from_its_index():
    for index in (ROOT / "README.md", ROOT / "docs/results/README.md"):
        linked = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
        folder = ROOT / "docs" if index.parent == ROOT else index.parent
        assert {page for page in folder.glob("*.md") if page != index} <= linked


def test_a_page_is_within_its_length():
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in NAMES if name != "CONTRIBUTING.md"}
    limits = {"README.md": LINES["README"]} | {f"docs/{name}.md": most for name, most in LINES.items()}
    assert {name: lines for name, lines in lengths.items() if lines > limits.get(name, 0)} == {}
    assert sum(lengths.values()) <= ALL_LINES


def test_flags_exist(text):
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z0-9_-]*[a-z0-9])(?![\w*])", text))
    assert named - flags_of_programs() == set()


def flags_of(program: str) -> set[str] | None:
    """Returns the flags of a program of tftrain, or of a script that the pages show; None for others."""
    if program not in flag_table.PROGRAMS:
        return OTHER.get(program)
    own = names(flag_table.PROGRAMS[program]) | OTHER["absl"]
    if program == "tftrain.launch":
        own |= {name.replace("_", "-") for name in own} | names(flag_table.PROGRAMS["tftrain.run"])
    return own | {f"no{name}" for name in own}


def test_a_command_names_only_flags_of_its_program(text):
    wrong = []
    for command in re.finditer(rf"{COMMAND}([^|;&<>`#\n]*)", re.sub(r"\\\n\s*", " ", text)):
        program = command[3] or f"tftrain.{command[1] or command[2]}"
        named = set(re.findall(r"(?<!\S)--([a-z][\w-]*)", command[4]))
        known = flags_of(program)
        wrong += [(program, flag) for flag in sorted(named - known)] if known is not None else []
    assert wrong == []


@pytest.mark.parametrize("name", [name for name in NAMES if name.count("/") < 2 and name != "CONTRIBUTING.md"])
def test_guides_have_no_words_that_belong_to_other_pages(name):
    words = [(ROOT / name).read_text().lower().count(phrase) for phrase in NOT_IN_GUIDES]
    assert dict(zip(NOT_IN_GUIDES, words, strict=True)) == dict.fromkeys(NOT_IN_GUIDES, 0)


def test_the_page_of_flags_is_what_the_declarations_say():
    assert flag_table.PAGE.read_text() == flag_table.page(), "write it again: python tools/flag_table.py"


def test_files_exist(text):
    named = re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./-]*\w)(?![\w*/])", text)
    assert [path for path in named if not (ROOT / path).exists() and "/X" not in path] == []


def test_modules_exist(text):
    named = re.findall(r"(?<![\w/.-])((?:tftrain|tests)(?:\.[a-zA-Z_]\w*)+)", text)
    assert [name for name in named if not exists(name)] == []


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or is defined in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ROOT.joinpath(*parts[:count])
        if module.is_dir() and count == len(parts):
            return True
        file = module.with_suffix(".py") if module.with_suffix(".py").exists() else module / "__init__.py"
        if file.exists():
            rest = parts[count : count + 1]
            return not rest or bool(re.search(rf"^(?:def|class) {rest[0]}\b|^{rest[0]}\b.* =", file.read_text(), re.M))
    return False
