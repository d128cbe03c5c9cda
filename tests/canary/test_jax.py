"""Private parts of Qwix and Tunix, and the modules of Tunix that become others."""

import jax
import jax.numpy as jnp
import pytest
import qwix
from flax import nnx

from crossmesh.compat import qwix_jax, tunix_modules
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.jax.layers_jax import ModelConfig
from crossmesh.models.jax.tunix_jax import make_model
from crossmesh.models.weights.random_weights import architecture_config, architecture_names

pytestmark = pytest.mark.canary
TINY = [name for name in architecture_names() if name.startswith("tiny_")]


def test_what_qwix_finds_out():
    seen = []

    class Provider(qwix.LoraProvider):
        def dot_general(self, lhs, rhs, *args, **kwargs):
            rule, name, module = qwix_jax.current_rule(self, "dot_general"), qwix_jax.parameter_name(rhs), qwix_jax.current_module()
            seen.append((rule.rank, name, type(module).__name__, qwix_jax.parameter_name(lhs)))
            return super().dot_general(lhs, rhs, *args, **kwargs)

    provider = Provider([qwix.LoraRule(module_path=".*", rank=3, alpha=3.0)])
    model = qwix.apply_lora_to_model(nnx.Linear(4, 2, rngs=nnx.Rngs(0)), provider, jnp.ones((1, 4)), rngs=nnx.Rngs(0))
    seen.clear()
    model(jnp.ones((1, 4)))
    assert seen[0] == (3, "kernel", "Linear", None)


def test_not_intercepted():
    called = []

    class Provider(qwix.LoraProvider):
        def dot_general(self, lhs, rhs, *args, **kwargs):
            called.append("dot_general")
            return super().dot_general(lhs, rhs, *args, **kwargs)

    class Module(nnx.Module):
        def __call__(self, x):
            return qwix_jax.not_intercepted(lambda y: jax.lax.dot(y, y))(x)

    model = qwix.apply_lora_to_model(Module(), Provider([]), jnp.ones((2, 2)), rngs=nnx.Rngs(0))
    model(jnp.ones((2, 2)))
    assert called == []


@pytest.mark.parametrize("name", TINY)
def test_become(name):
    architecture = parse_architecture(architecture_config(name), name)
    model = nnx.eval_shape(lambda: make_model(architecture, ModelConfig(remat="layer", quantization="nf4")))
    layer = model.layers[0]
    assert type(layer.attn).__module__.startswith("crossmesh.")
    assert type(model).__module__.startswith("crossmesh.")
    products = [module for _, module in layer.iter_modules() if hasattr(module, "makes_whole")]
    assert products
    if name in ("tiny_gemma3", "tiny_gemma4"):
        assert callable(tunix_modules.query_norm(layer.attn))
        assert callable(tunix_modules.key_norm(layer.attn))
        tunix_modules.drop_norms(layer.attn)
        assert not hasattr(layer.attn, tunix_modules.QUERY_NORM)
