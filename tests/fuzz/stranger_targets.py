"""Fuzz targets of what strangers publish: torch's files, archives, tables of columns, chat templates."""

import argparse
import gzip
import io
import os
import tarfile
import zipfile

import numpy as np

from tests.fuzz.harness import Target
from tests.fuzz.mutations import mutate
from tftrain.config.prepare import PrepareConfig
from tftrain.files.errors import DataError, FormatError
from tftrain.formats import torch_file

WORDS = ["the cat sat on the mat.", "a dog.", "", "\u00e9t\u00e9", "x" * 300]


class TorchFile(Target):
    """Pickles and archives of torch: what is accepted has tensors of finite sizes."""

    name, clean = "torch_file", (FormatError,)

    def begin(self):
        values = {name: np.arange(size, dtype=np.float32).reshape(-1, 2) for name, size in (("a", 12), ("b/c", 4))}
        content = {name: torch_file.Placeholder(name, value.shape) for name, value in values.items()}
        file = io.BytesIO()
        torch_file.write(file, {**content, "args": argparse.Namespace(n=3), "list": [1, (2.5, "x")]}, values.items())
        self._content = file.getvalue()

    def damage(self, rng, folder):
        content = self._content
        if rng.random() < 0.6:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                entries = {name: archive.read(name) for name in archive.namelist()}
            name = "archive/data.pkl" if rng.random() < 0.8 else str(rng.choice(list(entries)))
            entries[name] = mutate(rng, entries[name])
            with zipfile.ZipFile(
                folder / "x.pt", "w", int(rng.choice([zipfile.ZIP_STORED] * 3 + [zipfile.ZIP_DEFLATED]))
            ) as new:
                for name, entry in entries.items():
                    new.writestr(name, entry)
        else:
            (folder / "x.pt").write_bytes(mutate(rng, content))
        return "x.pt"

    def use(self, folder):
        file = torch_file.TorchFile(folder / "x.pt")
        for tensor in file.content.values() if isinstance(file.content, dict) else []:
            if isinstance(tensor, torch_file.Tensor):
                assert file.read(tensor).copy().size <= 1 << 20


class Archive(Target):
    """Archives of texts, some of them compressed."""

    name, clean, file = "archive", (DataError,), "a.tar"

    def begin(self):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in ("a.txt", "b/" + "c" * 200, "\u00e9.txt"):
                info = tarfile.TarInfo(name)
                content = "\n\n".join(WORDS).encode()
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        self._content = file.getvalue()

    def damage(self, rng, folder):
        content = mutate(rng, self._content)
        (folder / self.file).write_bytes(gzip.compress(content) if rng.random() < 0.3 else content)
        return self.file

    def use(self, folder):
        from tftrain.prepare import sources

        path = str(folder / self.file)
        documents = list(sources.read(sources.parts([path]), PrepareConfig(skip_bad_rows=True)))
        assert sum(len(text) for document in documents for text in document.paragraphs) < 1 << 24


class ParquetFile(Archive):
    """Parquet files."""

    name, file = "parquet", "a.parquet"

    def begin(self):
        import pyarrow
        from pyarrow import parquet

        file = io.BytesIO()
        parquet.write_table(pyarrow.table({"text": WORDS * 3, "n": list(range(15))}), file, row_group_size=5)
        self._content = file.getvalue()


class ArrowFile(Archive):
    """Arrow files."""

    name, file = "arrow", "a.arrow"

    def begin(self):
        import pyarrow

        file, table = io.BytesIO(), pyarrow.table({"text": pyarrow.array(WORDS * 3).dictionary_encode()})
        with pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        self._content = file.getvalue()


class ChatTemplate(Target):
    """Templates made of pieces that loop, grow, or reach for what they may not."""

    name, clean = "chat_template", (DataError,)
    pieces = (
        *("{% for i in range(99999) %}", "{% endfor %}", "{% for m in messages %}", "{{ m.content }}", "{% if m %}"),
        *("{% endif %}", "{{ messages }}", "{{ messages[0].content * 10 ** 8 }}", "{% set a = 'a' * 9999 %}"),
        *("{{ a * 9999 }}", "{% macro f(n) %}", "{% endmacro %}", "{{ f(3) }}", "{{ ''.__class__ }}", "{% raw %}"),
        *(
            "{{ messages | tojson(indent=99999999) }}",
            "{{ raise_exception('no\nmore') }}",
            "{{ self }}",
            "{{ cycler }}",
        ),
        *("{{ 'a' | center(999999999) }}", "{% break %}", "{{ '%s' | format(messages) }}", "{{ lipsum(n=100000) }}"),
        *("{{ dict(a=1) }}", "\x1b[2J\u202e", "{#"),
    )

    def damage(self, rng, folder):
        text = "".join(map(str, rng.choice(self.pieces, rng.integers(1, 8))))
        (folder / "template").write_bytes(mutate(rng, text.encode()) if rng.random() < 0.3 else text.encode())
        return "the chat template"

    def use(self, folder):
        from tftrain.finetune.chat_template import LONGEST_TEXT, Renderer

        text = (folder / "template").read_bytes().decode(errors="replace")
        rendered = Renderer(text, seconds=1)({"messages": [{"role": "user", "content": "hello"}]})
        assert len(rendered) <= LONGEST_TEXT
        assert os.listdir(folder) == ["template"]
