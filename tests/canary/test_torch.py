"""Private parts of torch and transformers."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from crossmesh.compat import torch_core, tracing_torch
from crossmesh.compat.transformers_models import forget_quantization

pytestmark = pytest.mark.canary


def test_fused_attention():
    query = torch.ones(1, 1, 2, 8)
    called = []

    class Seen(tracing_torch.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(func)
            return func(*args, **(kwargs or {}))

    with Seen():
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    fused = torch_core.fused_attention()
    assert len(fused) == 4
    assert fused & {*called}


def test_lists_of_tensors():
    targets, sources = [torch.zeros(2), torch.zeros(3)], [torch.full((2,), 3.0), torch.full((3,), 2.0)]
    torch_core.copy_all(targets, sources)
    torch_core.scale_all(targets, torch.tensor(2.0))
    assert [one.tolist() for one in targets] == [[6.0, 6.0], [4.0, 4.0, 4.0]]
    assert [float(norm) for norm in torch_core.norms_of([torch.tensor([3.0, 4.0])])] == [5.0]


def test_sharded_like():
    with tracing_torch.fake_process_group(2):
        like = DTensor.from_local(torch.zeros(2, 3), init_device_mesh("cpu", (2,)), [Shard(0)])
        part = torch_core.sharded_like(torch.ones(2, 3), like)
        assert part.shape == (4, 3)
        assert part.placements == (Shard(0),)
        assert part.to_local().sum() == 6


def test_allow_recompiles():
    torch_core.allow_recompiles(64)
    assert torch._dynamo.config.recompile_limit >= 64


def test_backend_failure():
    def broken(graph, inputs):
        raise OSError("no compiler")

    with pytest.raises(torch_core.backend_failure()) as caught:
        torch.compile(lambda x: x + 1, backend=broken)(torch.ones(2))
    assert isinstance(caught.value.inner_exception, OSError)


def test_compile_failures():
    def breaks(x):
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(torch_core.compile_failures()):
        torch.compile(breaks, backend="eager", fullgraph=True)(torch.ones(2))


def test_fake_tensors():
    with tracing_torch.fake_tensors():
        made = torch.empty(1 << 20, 1 << 20)
    assert isinstance(made, tracing_torch.FakeTensor)
    assert made.untyped_storage().nbytes() == 1 << 42


def test_fake_process_group():
    with tracing_torch.fake_process_group(4):
        assert torch.distributed.get_world_size() == 4
        torch.distributed.all_reduce(torch.ones(2))
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    "name",
    [
        "_unsafe_view",
        "_local_scalar_dense",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ],
)
def test_aten(name):
    assert tracing_torch.aten(name).default.name().endswith(f"aten::{name}")


def test_in_backward():
    seen = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda _: seen.append(tracing_torch.in_backward()))
    assert not tracing_torch.in_backward()
    x.sum().backward()
    assert seen == [True]


def test_storage_key():
    first, second = torch.zeros(4), torch.zeros(4)
    keys = [tracing_torch.storage_key(one.untyped_storage()) for one in (first, first.view(2, 2), second)]
    assert keys[0] == keys[1] != keys[2]


def test_resizes_seen():
    sizes = []
    storage = torch.zeros(4).untyped_storage()
    with tracing_torch.resizes_seen(lambda seen: sizes.append(seen.nbytes())):
        storage.resize_(0)
        storage.resize_(32)
    storage.resize_(8)
    assert sizes == [0, 32]


def test_tree_leaves():
    assert tracing_torch.tree_leaves({"a": [1, (2,)], "b": 3}) == [1, 2, 3]


def test_forget_quantization():
    config = SimpleNamespace(quantization_config={}, _name_or_path="model.gguf")
    model = SimpleNamespace(config=config, is_quantized=True, hf_quantizer=object(), weight=1)
    forget_quantization(model)
    assert vars(model) == {"config": config, "weight": 1}
    assert config == SimpleNamespace(_name_or_path="")
