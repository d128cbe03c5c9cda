"""Distances between runs, with values that a wrong formula would miss."""

import math

import numpy as np
import pytest

from crossmesh.errors import CrossmeshError
from crossmesh.verify.differences import distance, frobenius, loss_differences, module_difference, modules_by_kind, trained_modules

A = {"x": np.array([[3.0, 0.0]], np.float32), "y": np.array([4.0], np.float32)}
B = {"x": np.array([[3.0, 0.0]], np.float32), "y": np.array([4.5], np.float32)}


def test_losses_differ_relative_to_the_reference():
    assert loss_differences([2.0, 3.0], [2.0, 4.0]) == [0.0, 0.25]


def test_runs_of_different_lengths_cannot_be_compared():
    with pytest.raises(CrossmeshError, match="2 and 1 steps"):
        loss_differences([1.0, 2.0], [1.0])


def test_the_norm_is_over_all_arrays_together():
    assert frobenius(A) == pytest.approx(5.0)


def test_the_distance_is_relative_to_the_reference_or_to_how_far_it_went():
    assert distance(B, A) == pytest.approx(0.5 / 5.0)
    origin = {"x": np.array([[3.0, 0.0]], np.float32), "y": np.array([2.0], np.float32)}
    assert distance(B, A, origin) == pytest.approx(0.5 / 2.0)


def test_different_or_still_adapters_have_no_finite_distance():
    assert distance({"x": A["x"]}, A) == math.inf
    assert distance(A, A, A) == math.inf


def test_modules_come_from_the_arrays_that_were_trained_and_are_sorted_by_layer_kind():
    adapter = {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": A["x"],
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": A["x"],
        "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight": A["x"],
    }
    modules = trained_modules(adapter)
    assert modules == {"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"}
    kinds = {"model.layers.0.self_attn.q_proj": "sliding q"}
    assert modules_by_kind(modules, kinds) == {"sliding q": 1, "unknown": 1}
    assert module_difference(modules, {"model.layers.1.mlp.up_proj"}, kinds) == {"sliding q": ["model.layers.0.self_attn.q_proj"]}
    assert module_difference(modules, modules, kinds) == {}
