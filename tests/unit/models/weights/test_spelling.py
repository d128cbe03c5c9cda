"""The names that one tensor has had in checkpoints."""

from crossmesh.models.weights.spelling import locate, spellings


def test_the_text_decoder_of_a_multimodal_checkpoint_is_found_under_its_old_name() -> None:
    name = "model.language_model.layers.3.mlp.up_proj.weight"
    old = "language_model.model.layers.3.mlp.up_proj.weight"
    assert locate([name], {old, "vision_tower.vision_model.layers.3.mlp.up_proj.weight"}) == {name: old}
    assert locate([name], {old, name}) == {name: name}
    assert list(spellings("lm_head.weight")) == ["lm_head.weight", "language_model.lm_head.weight"]


def test_nothing_else_is_guessed() -> None:
    assert list(spellings("vision_tower.layers.0.weight")) == ["vision_tower.layers.0.weight"]
    assert locate(["model.norm.weight"], {"norm.weight"}) == {}
