"""Pages that name messages, versions and modules: these are those of the code."""

import re

import pytest

from tests.kit.ranks import ROOT
from tftrain.checkpoint.manifest import FORMAT_VERSION
from tftrain.data.manifest import FORMAT
from tftrain.host.exit_codes import ExitCode

SOURCES = [*(ROOT / "tftrain").rglob("*.py"), *(ROOT / "tools").glob("*.py"), ROOT / "tools/setup.sh"]
QUOTE = re.compile(r"`([^`]+)`")
VALUES = re.compile(r"\.\.\.|--\w+(?:=\S*)?|\d+|[=:;()*]|\bnode2\b")  # what differs from run to run
API = (ROOT / "docs/api.md").read_text()
SHORTEST = 12  # characters of a passage


def passages(text: str) -> list[str]:
    """Returns the words of the quoted messages in the first column of the tables, without values."""
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    quotes = [quote for cell in cells for quote in QUOTE.findall(cell) if " " in quote]
    return [part.strip(" ,.") for quote in quotes for part in VALUES.split(quote) if len(part.strip(" ,.")) >= SHORTEST]


def test_quoted_messages_are_in_the_code():
    code = " ".join(path.read_text() for path in SOURCES)
    code = re.sub(r'"\s*f?"', "", code)  # a message on several lines
    found = passages((ROOT / "docs/troubleshooting.md").read_text())
    assert len(found) > 20
    assert [part for part in found if part not in code] == []


def test_versions_are_those_of_the_lock_files():
    page = (ROOT / "docs/versions.md").read_text()
    for file in ("requirements.lock", "requirements-tf2.21.lock"):
        locked = re.findall(
            r"^(?:tensorflow|tensorflow-text|tf-keras)==([\d.]+)", (ROOT / file).read_text(), re.MULTILINE
        )
        assert [version for version in locked if version not in page] == []
    assert f"`format_version` {FORMAT_VERSION}" in page
    assert f"`format` {FORMAT}" in page


def test_every_exit_code_has_its_remedy():
    page = (ROOT / "docs/troubleshooting.md").read_text()
    assert [code for code in ExitCode if 1 < code < ExitCode.SIGNALLED and f"xit code {int(code)}" not in page] == []


@pytest.mark.parametrize("line", re.findall(r"^\| `(tftrain[.\w]*)` \| (.*?) \|", API, re.MULTILINE))
def test_public_names_exist(line):
    module, names = line
    file = ROOT / module.replace(".", "/")
    source = (file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text()
    assert [name for name in re.findall(r"`(\w+)`", names) if not re.search(rf"\b{name}\b", source)] == []
