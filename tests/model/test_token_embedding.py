"""Which pipeline stage has the token embedding, and which one owns it."""

import pytest

from tests.model.samples import small_config
from tftrain.model.bert import BertClassifier, BertPretrainer
from tftrain.model.part import ModelPart

NAME = "embeddings/word"


def stage(part, model_class=BertPretrainer, **changes):
    return model_class(small_config(**changes), "float32", 1, part=part)


def test_the_first_stage_owns_a_tied_table_and_the_last_one_has_an_equal_copy_after_its_own_variables():
    first, last = stage(ModelPart((0,), heads=False)), stage(ModelPart((1,), embedding=False))
    assert first.token_embedding.is_shared
    assert not first.token_embedding.copy
    assert next(iter(first.named_variables())) == NAME
    assert first.held_variables() == first.named_variables()
    assert NAME not in last.named_variables()
    assert list(last.held_variables()) == [*last.named_variables(), NAME]
    assert last.token_embedding.is_shared
    assert last.shards[NAME] == first.shards[NAME]
    assert (last.token_embedding.table.numpy() == first.token_embedding.table.numpy()).all()


@pytest.mark.parametrize("part", [None, ModelPart((1,), embedding=False, heads=False)], ids=["whole", "middle"])
def test_a_model_on_one_stage_and_a_stage_between_share_nothing(part):
    model = stage(part)
    assert not model.token_embedding.is_shared
    assert (NAME in model.held_variables()) == (part is None)


def test_a_model_whose_output_is_not_tied_shares_nothing():
    model = stage(ModelPart((1,), embedding=False), BertClassifier, task="classification", labels=("a", "b"))
    assert not model.token_embedding.is_shared
    assert model.token_embedding.table is None
