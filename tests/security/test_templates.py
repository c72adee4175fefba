"""Chat templates of strangers: what would not end or would fill the memory ends in one line."""

import json

import pytest

from tests.formats.models import DATA
from tftrain.files.errors import DataError
from tftrain.finetune.chat_template import Renderer
from tftrain.finetune.completions import Template, end_of_answer
from tftrain.tokenizer import tokenizer_files

LOOP = "{% for i in range(99999) %}"
ENDLESS = {
    "nested loops": LOOP * 3 + "{% endfor %}" * 3,
    "a macro that calls itself": "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
}
LARGE = {
    "a product": "{{ messages[0].content * 10 ** 10 }}",
    "a constant product": "{{ 'a' * 10 ** 10 }}",
    "a doubled text": "{% set n = namespace(t='a') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "a wide column": "{{ messages[0].content | center(10 ** 10) }}",
    "a wide format": "{{ '%9999999999d' % 1 }}",
    "a method": "{{ 'a'.ljust(10 ** 10) }}",
    "an indented value": "{{ [[[1]]] | tojson(indent=10 ** 9) }}",
    "many lines": LOOP + "{{ 'a' * 4000 }}{% endfor %}",
}
MESSAGES = {"messages": [{"role": "user", "content": "a"}]}


# A limit is at least a second of processor; a power, which is one call of C, is the hardest to stop.
@pytest.mark.parametrize(
    "text",
    [*(pytest.param(ENDLESS[kind], id=kind, marks=pytest.mark.nightly) for kind in ENDLESS), "{{ 9 ** (9 ** 9) }}"],
)
def test_a_template_without_an_end_is_stopped(text):
    with pytest.raises(DataError, match=r"^the chat template [^\n]*: it takes more than [^\n]*$"):
        Renderer(text, seconds=1)(MESSAGES)


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_a_template_that_needs_much_memory_is_stopped(text):
    with pytest.raises(
        DataError, match=r"^the chat template [^\n]*: (it (takes|writes) more than|Result is too)[^\n]*$"
    ):
        Renderer(text)(MESSAGES)


@pytest.mark.parametrize("option", ["default=raise_exception", "cls=cycler", "skipkeys=true", "object_hook=dict"])
def test_tojson_takes_only_options_of_the_text(option):
    with pytest.raises(DataError, match="unexpected keyword argument"):
        Renderer("{{ messages | tojson(OPTION) }}".replace("OPTION", option))(MESSAGES)
    render = Renderer("{{ messages | tojson(ensure_ascii=true, indent=2, separators=(',', ' : '), sort_keys=true) }}")
    expected = json.dumps(MESSAGES["messages"], indent=2, separators=(",", " : "), sort_keys=True)
    assert render(MESSAGES) == expected


def test_a_template_reaches_nothing_and_goes_on_after_an_error():
    render = Renderer("{% if fail %}{{ raise_exception('no') }}{% endif %}{{ (x.__class__ | string) ~ '\u00e9' }}")
    with pytest.raises(DataError, match=r"can't make a text of the messages: no$"):
        render({"fail": True})
    with pytest.raises(DataError, match="unsafe"):
        Renderer("{{ x.__class__.__mro__ }}")({"x": ""})
    assert render({"x": ""}) == "\u00e9"


def test_the_template_of_a_tokenizer_is_bounded():
    own = tokenizer_files.read(DATA / "hf_llama")._replace(chat_template=LARGE["many lines"])
    with pytest.raises(DataError, match="the chat template can't make a text"):
        end_of_answer(Template(own))
