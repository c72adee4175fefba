"""Sources at addresses: servers of HTTP and S3 on this machine, with faults."""

import functools
import http.server

import fsspec
import pytest

from tests.kit.servers import serving
from tests.prepare.test_prepare import PAIRS
from tests.prepare.test_sources import DOCUMENTS, arrow, contents, json_lines, parquet, saved_dataset, write
from tftrain.config.prepare import PrepareConfig
from tftrain.files import addresses
from tftrain.files.errors import DataError, MissingFileError
from tftrain.prepare import sources
from tftrain.prepare.input_files import list_files
from tftrain.prepare.preparation import prepare
from tools import address_speed

pytestmark = pytest.mark.usefixtures("quick")


class Files(http.server.SimpleHTTPRequestHandler):
    """The server of the standard library, which gives no ranges of a file."""

    def log_message(self, *_):
        pass


class RangeFiles(address_speed.Slow):
    """The same with ranges, at once."""

    seconds = 0.0


def documents_at(*values):
    for document in sources.read(sources.parts(list_files(values)[0]), PrepareConfig()):
        yield "\n".join(document.paragraphs)


def test_memory_and_file_addresses(tmp_path):
    fsspec.filesystem("memory").pipe("/texts/a.jsonl", json_lines(DOCUMENTS[:10]))
    write(tmp_path, {"b.parquet": parquet(DOCUMENTS[10:]), ".hidden.txt": b"none"})
    assert list(documents_at("memory://texts/*.jsonl", f"file://{tmp_path}")) == DOCUMENTS[10:] + DOCUMENTS[:10]
    assert list_files([f"file://{tmp_path}/b.parquet"]) == ([f"{tmp_path}/b.parquet"], 0)


@pytest.mark.parametrize("name", ["", "*", "**", "sub", "s*b", "d[1].txt", "[ad]*", "**/*.txt", ".h*", "*/c%20 c.txt"])
def test_a_name_matches_at_an_address_what_it_matches_in_a_folder(tmp_path, s3, name):
    names = ["a.txt", "d[1].txt", "d1.txt", ".hidden.txt", "sub/c%20 c.txt", "sub/.hidden/a.txt", "sub/deep/e.txt"]
    write(tmp_path, dict.fromkeys(names, b"text"))
    # Those that end with "/" are what a store's own page writes for a folder.
    if not s3[1].exists("bucket/names/a.txt"):
        s3[1].pipe({f"bucket/names/{each}": b"" if each.endswith("/") else b"text" for each in [*names, "", "sub/"]})
    expected = [path.removeprefix(f"{tmp_path}/") for path in list_files([f"{tmp_path}/{name}"])[0]]
    assert expected
    for root in (f"file://{tmp_path}/", "s3://bucket/names/"):
        listed = list_files([root + name])[0]
        assert [path.removeprefix(root).removeprefix(f"{tmp_path}/") for path in listed] == expected


@pytest.mark.parametrize("handler", [Files, RangeFiles])
def test_http(tmp_path, handler, monkeypatch):
    write(tmp_path, {"a.jsonl": json_lines(DOCUMENTS[:10]), "b.txt": "\n\n".join(DOCUMENTS[10:20])})
    write(tmp_path, {"large.txt": "word\n" * (3 << 20), ".hidden.txt": b"none"})
    write(tmp_path, {"c.parquet": parquet(DOCUMENTS[20:])})
    with serving(functools.partial(handler, directory=str(tmp_path))) as (host, port):
        root = f"http://{host}:{port}"
        found = list(documents_at(f"{root}/a.jsonl,{root}/b.txt"))
        assert found == DOCUMENTS[:20]
        assert list(documents_at(f"{root}/c.*")) == DOCUMENTS[20:]
        names = [path.rpartition("/")[2] for path in list_files([f"{root}/"])[0]]
        assert names == ["a.jsonl", "b.txt", "c.parquet", "large.txt"]
        # The query of a signed address is no part of the name's ending.
        assert list(documents_at(f"{root}/a.jsonl?download=true")) == DOCUMENTS[:10]
        # Above the block of one request.
        assert sum(1 for _ in addresses.open_file(f"{root}/large.txt")) == 3 << 20
        with pytest.raises(DataError, match=f"^--input_files={root}/gone.txt: no such file; expected an address"):
            list_files([f"{root}/gone.txt"])
        with pytest.raises(MissingFileError, match=f"^--input_files={root}/gone.\\*: no file matches"):
            list_files([f"{root}/gone.*"])


@pytest.mark.parametrize("fault", [503, "reset", "cut"])
@pytest.mark.parametrize("handler", [Files, RangeFiles])
def test_http_faults_are_retried(tmp_path, handler, proxy, fault):
    content = json_lines(DOCUMENTS * 100)
    write(tmp_path, {"a.jsonl": content})
    with serving(functools.partial(handler, directory=str(tmp_path))) as address:
        faulty, (host, port) = proxy(address)
        url = f"http://{host}:{port}/a.jsonl"
        faulty.faults[:] = [fault, fault]
        with addresses.open_file(url) as file:
            assert file.read() == content
        assert not faulty.faults
        faulty.faults[:] = [fault] * 1000
        with pytest.raises(OSError, match=r"\(tried 4 times\)") as raised, addresses.open_file(url) as file:
            file.read()
        assert raised.value.filename == url


@pytest.mark.parametrize(
    ("address", "reason"),
    [("http://127.0.0.1:9/a.txt", r".*\(tried 4 times\)"), ("none://x", "Protocol not known: none")],
)
def test_an_address_that_can_not_be_listed_is_named(address, reason):
    with pytest.raises(DataError, match=f"^--input_files={address}: {reason}; expected an address that can be listed"):
        list_files([address])


@pytest.mark.slow
def test_s3_gives_the_bytes_of_the_local_files(tmp_path, s3, prepare_config):
    handler, system = s3
    files = saved_dataset({"data-0.arrow": arrow(DOCUMENTS)})
    for name, content in files.items():
        system.pipe(f"bucket/set/{name}", content if isinstance(content, bytes) else content.encode())
    changes = {**PAIRS, "vocab_file": None}
    prepare(prepare_config(tmp_path / "local", input_files=write(tmp_path / "in", files), **changes))
    handler.faults[:] = [503, "reset"]
    prepare(prepare_config(tmp_path / "s3", input_files="s3://bucket/set", num_workers=2, **changes))
    assert contents(tmp_path / "local") == contents(tmp_path / "s3")


@pytest.mark.parametrize("fault", [503, "reset", "cut"])
def test_s3_faults_are_retried(s3, fault):
    handler, system = s3
    content = parquet(DOCUMENTS * 20, rows=200)
    system.pipe("bucket/one/a.parquet", content)
    handler.faults[:] = [fault] * 2
    assert list(documents_at("s3://bucket/one/*.parquet")) == DOCUMENTS * 20
    assert not handler.faults


def test_s3_that_does_not_recover_is_named(s3):
    handler, system = s3
    system.pipe("bucket/one/a.jsonl", json_lines(DOCUMENTS))
    part = sources.FilePart("s3://bucket/one/a.jsonl")
    handler.faults[:] = ["reset"] * 10000
    with pytest.raises(DataError, match=r"^s3://bucket/one/a.jsonl: .*\(tried 4 times\)"):
        list(sources.read([part], PrepareConfig()))


def test_s3_of_others_is_named(s3):
    handler, _ = s3
    with pytest.raises(DataError, match=r"^--input_files=s3://bucket/none/: no such file; expected an address"):
        list_files(["s3://bucket/none/"])
    handler.faulty, handler.faults[:] = ("GET", "HEAD"), ["denied"] * 1000
    with pytest.raises(DataError, match=r"^--input_files=s3://bucket/a.txt: Forbidden; expected an address"):
        list_files(["s3://bucket/a.txt"])


def test_a_bucket_or_a_key_that_is_missing_is_not_tried_again(s3):
    for name in ("s3://no-bucket/a/b.txt", "s3://bucket/a/b.txt"):
        for find in (addresses.list_files, lambda name: addresses.read_small(name, 10)):
            with pytest.raises(OSError, match="no such file") as raised:
                find(name)
            assert "tried" not in str(raised.value)
    with pytest.raises(OSError, match="no such file"):
        addresses.listing("s3://no-bucket/a")
