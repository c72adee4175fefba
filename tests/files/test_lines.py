"""Files of flags' values: comments, empty lines, ends of lines and the byte order mark of other systems."""

from tftrain.files.lines import lines


def test_lines_of_a_file_of_another_system(tmp_path):
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfa=1\t b=2\r\n\r\n# no line\r\nc=3 # said\r\n")
    assert lines(str(tmp_path / "file"), "") == ["a=1 b=2", "c=3"]
    assert lines("a=1  b=2; c=3;", "") == ["a=1 b=2", "c=3"]
