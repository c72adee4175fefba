"""A cluster of one's own: what a file leaves out is the listed cluster's, and what is wrong with it is said."""

import dataclasses
import json
import re

import pytest

from tftrain.config.fields import ConfigError
from tftrain.plan import cluster_file
from tftrain.plan.cluster import CLUSTERS


def read(path, text):
    path.write_text(text)
    return cluster_file.read(path, "cluster", "a cluster")


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_listed_cluster_can_be_written_down(tmp_path, name):
    assert read(tmp_path / "own.json", json.dumps(dataclasses.asdict(CLUSTERS[name]))) == CLUSTERS[name]


def test_what_is_left_out_is_the_listed_clusters(tmp_path):
    found = read(tmp_path / "own.json", '{"like": "h100", "network_gbs": 12.5}')
    assert found == dataclasses.replace(CLUSTERS["h100"], name="own", network_gbs=12.5)


def test_memory_is_in_gb_of_1e9_bytes_unless_an_older_file_states_gib(tmp_path):
    fields = '{"like": "a100_80gb", "memory_gb": 40'
    for unit, gb in (("", 40), (', "unit": 1000000000', 40), (', "unit": 1073741824', 40 * 2**30 / 1e9)):
        assert read(tmp_path / "own.json", fields + unit + "}").memory_gb == pytest.approx(gb)
    # The listed cluster's own memory is in GB already.
    assert read(tmp_path / "own.json", '{"like": "v100", "unit": 1073741824}').memory_gb == CLUSTERS["v100"].memory_gb


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(("", "Expecting value"), ("[]", "not an object"), ("{}", "memory_gb, peak_fp32")),
        *(('{"curve": 3}', "memory_gb, peak_fp32"), ('{"like": "b100"}', "b100.*a100_80gb, .*a64fx")),
        *(('{"like": ["v100"]}', "v100"), ('{"like": "v100", "colour": "green"}', "colour.*memory_gb")),
        ('{"like": "v100", "name": 3}', "name=3"),
        ('{"like": "v100", "card": "b200"}', "card='b200' is none of h100"),
        ('{"like": "v100", "memory_gbs": "fast"}', "memory_gbs='fast'"),
        ('{"like": "v100", "memory_gbs": 0}', "memory_gbs is 0"),
        ('{"like": "v100", "memory_gbs": NaN}', "memory_gbs=nan"),
        ('{"like": "v100", "link_gbs": true}', "link_gbs=True"),
        ('{"like": "v100", "multiprocessors": 1.5}', "multiprocessors=1.5"),
        ('{"like": "v100", "per_node": 8.0}', "per_node=8.0"),
        ('{"like": "v100", "memory_gb": 1' + 400 * "0" + "}", "too large"),
        *((10**5 * "[", "recursion"), ('{"like": "v100", "link_gbs": 0}', "link_gbs is 0")),
        *(('{"like": "v100", "unit": 1024}', "unit=1024"), ('{"like": "v100", "curve": null}', "NoneType")),
        *(('{"like": "v100", "curve": [[1]]}', "unpack"), ('{"like": "v100", "curve": [[1, 0]]}', r"\[1, 0\]")),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path, text, words):
    with pytest.raises(ConfigError) as error:
        read(tmp_path / "own.json", text)
    assert re.search(f"--cluster={tmp_path / 'own.json'}: expected a cluster: .*{words}", str(error.value))
