"""The streaming merge: the right sums, every other byte as it was, whole or not at all, and one message for each bad input."""

import errno
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from checkpoint_folders import BFLOAT16, random_array, write_checkpoint, write_peft
from crossmesh.adapters.merge import Merged, merge
from crossmesh.adapters.peft_format import open_adapter
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import digest_file
from crossmesh.models.weights import rewriting, stores
from crossmesh.models.weights.fetch import weights_digest
from crossmesh.models.weights.stores import open_store

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


def run(base: Path | str, adapter: Path, out: Path, **options: Any) -> Merged:
    return merge(open_adapter(adapter), open_store(str(base)), out, lambda done, total: None, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Path, Path]:
    """A base of two shards in bfloat16 and an adapter of two of its matrices."""
    random = np.random.default_rng(0)
    shards = [
        {
            "model.embed_tokens.weight": random_array(random, (32, 24), BFLOAT16),
            f"{Q}.weight": random_array(random, (40, 24), BFLOAT16),
            "model.layers.0.input_layernorm.weight": random_array(random, (24,), BFLOAT16),
        },
        {
            f"{DOWN}.weight": random_array(random, (24, 56), BFLOAT16),
            "model.norm.weight": random_array(random, (24,), np.float32),
            "counter": np.arange(5),
        },
    ]
    write_checkpoint(tmp_path / "base", shards)
    pairs = {
        Q: (random_array(random, (8, 24)), random_array(random, (40, 8))),
        DOWN: (random_array(random, (8, 56)), random_array(random, (24, 8))),
    }
    write_peft(tmp_path / "adapter", pairs)
    return tmp_path / "base", tmp_path / "adapter"


DTYPES = {"bfloat16": (BFLOAT16, 2.0**-8), "float16": (np.dtype(np.float16), 2.0**-11), "float32": (np.dtype(np.float32), 2.0**-24)}
"""Type, and half the distance of two neighbouring values relative to them."""


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    modules = draw(st.lists(st.sampled_from(["q_proj", "k_proj", "o_proj", "up_proj"]), min_size=1, max_size=4, unique=True))
    return {
        "dtype": draw(st.sampled_from(sorted(DTYPES))),
        "shapes": {name: (draw(st.integers(1, 60)), draw(st.integers(1, 40))) for name in modules},
        "rank": draw(st.integers(1, 9)),
        "alpha": draw(st.sampled_from([0.5, 3.0, 16.0, -2.0])),
        "rslora": draw(st.booleans()),
        "rank_pattern": {name: draw(st.integers(1, 5)) for name in draw(st.lists(st.sampled_from(modules), unique=True))},
        "alpha_pattern": {name: draw(st.sampled_from([1.0, 7.0])) for name in draw(st.lists(st.sampled_from(modules), unique=True))},
        "block": draw(st.sampled_from([1, 64, 1 << 20])),
        "shards": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 1 << 30)),
    }


@settings(max_examples=30, deadline=None)
@given(case=cases())
def test_any_model_gets_the_sums_rounded_once_and_keeps_the_rest(tmp_path_factory: pytest.TempPathFactory, case: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("case")
    random = np.random.default_rng(case["seed"])
    dtype, half_step = DTYPES[case["dtype"]]
    prefix = "model.layers.0.self_attn."
    rest = {f"model.norm{i}.weight": random_array(random, (3,), dtype) for i in range(3)}
    base = {f"{prefix}{name}.weight": random_array(random, shape, dtype) for name, shape in case["shapes"].items()}
    everything = list((base | rest).items())
    write_checkpoint(folder / "base", [dict(everything[i :: case["shards"]]) for i in range(case["shards"])])
    pairs, expected, bounds = {}, {}, {}
    for name, (out, into) in case["shapes"].items():
        rank = case["rank_pattern"].get(name, case["rank"])
        alpha = case["alpha_pattern"].get(name, case["alpha"])
        a, b = random_array(random, (rank, into)), random_array(random, (out, rank))
        pairs[prefix + name] = (a, b)
        scale = alpha / (rank**0.5 if case["rslora"] else rank)
        weight = base[f"{prefix}{name}.weight"].astype(np.float64)
        expected[name] = weight + scale * (b.astype(np.float64) @ a.astype(np.float64))
        # One rounding to the type, and the error of a float32 product of so many terms.
        terms = np.abs(weight) + abs(scale) * (np.abs(b).astype(np.float64) @ np.abs(a))
        bounds[name] = half_step * np.abs(expected[name]) * 1.001 + (rank + 4) * 2.0**-23 * terms + 1e-7
    write_peft(
        folder / "adapter",
        pairs,
        r=case["rank"],
        lora_alpha=case["alpha"],
        use_rslora=case["rslora"],
        rank_pattern=case["rank_pattern"],
        alpha_pattern=case["alpha_pattern"],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "_BLOCK", case["block"])
        run(folder / "base", folder / "adapter", folder / "out")
    merged = {name: array for file in (folder / "out").glob("*.safetensors") for name, array in load_file(file).items()}
    assert merged.keys() == base.keys() | rest.keys()
    for name, values in expected.items():
        found = merged[f"{prefix}{name}.weight"]
        assert found.dtype == dtype
        assert (np.abs(found.astype(np.float64) - values) <= bounds[name]).all()
    assert all(merged[name].tobytes() == array.tobytes() for name, array in rest.items())
    shutil.rmtree(folder)


def test_shards_index_and_small_files_are_as_they_were(tmp_path: Path, parts: tuple[Path, Path]) -> None:
    base, adapter = parts
    (base / "pytorch_model.bin").write_bytes(b"pickle")
    (base / "modeling_own.py").write_text("code")
    (base / "consolidated.safetensors").write_bytes(b"not of the index")
    before = contents(base)
    result = run(base, adapter, tmp_path / "out")
    after = contents(tmp_path / "out")
    shards = {name for name in before if name.startswith("model-")}
    same = before.keys() - shards - {"pytorch_model.bin", "modeling_own.py", "consolidated.safetensors"}
    assert after.keys() == same | shards | {"crossmesh.json"}
    assert all(after[name] == before[name] for name in same)
    changed = {f"{Q}.weight", f"{DOWN}.weight"}
    for name in shards:
        length = 8 + int.from_bytes(before[name][:8], "little")
        assert after[name][:length] == before[name][:length]
        header = json.loads(before[name][8:length])
        for tensor, entry in header.items():
            if tensor != "__metadata__":
                start, end = (length + offset for offset in entry["data_offsets"])
                assert (after[name][start:end] != before[name][start:end]) == (tensor in changed)
    manifest = json.loads(after["crossmesh.json"])
    assert manifest["sha256"] == {name: digest_file(tmp_path / "out" / name) for name in same | shards}
    assert manifest["made_from"]["base"]["sha256"] == {name: digest_file(base / name) for name in same | shards}
    assert manifest["made_from"]["scales"] == dict.fromkeys(sorted(changed), 2.0)
    assert result.weights_digest == weights_digest(sorted(shards), manifest["sha256"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base", "out"]


def test_a_merge_that_was_killed_goes_on_with_the_shards_that_are_left(
    tmp_path: Path, parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapter = parts
    run(base, adapter, tmp_path / "whole")
    write = rewriting._write_shard
    made: list[str] = []

    def dying(checkpoint: Any, shard: Any, *rest: Any) -> Any:
        made.append(shard.name)
        if len(made) == 2:
            (tmp_path / ".out.partial" / f".{shard.name}.1234").write_bytes(b"half of it")
            raise SystemExit
        return write(checkpoint, shard, *rest)

    monkeypatch.setattr(rewriting, "_write_shard", dying)
    with pytest.raises(SystemExit):
        run(base, adapter, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    first = tmp_path / ".out.partial" / "model-00001-of-00002.safetensors"
    inode = first.stat().st_ino
    received: list[tuple[int, int]] = []
    merge(open_adapter(adapter), open_store(str(base)), tmp_path / "out", lambda done, total: received.append((done, total)))
    assert made == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2, 2)]
    assert (tmp_path / "out" / first.name).stat().st_ino == inode
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert received[-1][0] == received[-1][1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base", "out", "whole"]


KILLED = """
import os, signal, sys
from pathlib import Path
from crossmesh.adapters.merge import merge
from crossmesh.adapters.peft_format import open_adapter
from crossmesh.models.weights.stores import open_store

folder = Path(sys.argv[1])
first = folder / ".out.partial" / ".shards" / "model-00001-of-00002.safetensors.json"

def die(done, total):
    while done > 4_000 and not first.exists():
        pass
    if first.exists():
        os.kill(os.getpid(), signal.SIGKILL)

merge(open_adapter(folder / "adapter"), open_store(str(folder / "base")), folder / "out", die)
"""


def test_a_process_that_dies_leaves_what_the_next_one_goes_on_with(tmp_path: Path, parts: tuple[Path, Path], checkout: Path) -> None:
    base, adapter = parts
    environment = {"PYTHONPATH": str(checkout / "platform")}
    random = np.random.default_rng(0)
    large = {f"model.layers.{i}.weight": random_array(random, (256, 1024), BFLOAT16) for i in range(8)}
    shutil.rmtree(base)
    write_checkpoint(
        base, [{f"{Q}.weight": random_array(random, (40, 24), BFLOAT16)}, large | {f"{DOWN}.weight": np.zeros((24, 56), BFLOAT16)}]
    )
    died = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, timeout=120, check=False)
    assert died.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    first = tmp_path / ".out.partial" / "model-00001-of-00002.safetensors"
    inode = first.stat().st_ino
    run(base, adapter, tmp_path / "out")
    assert (tmp_path / "out" / first.name).stat().st_ino == inode
    run(base, adapter, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_store_that_breaks_off_is_gone_on_with(tmp_path: Path, parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    base, adapter = parts
    whole = stores.LocalStore.open
    opened: list[str] = []

    class Breaking:
        def seek(self, *where: int) -> None:
            pass

        def read(self, size: int) -> bytes:
            raise TimeoutError("no answer")

        def close(self) -> None:
            pass

    def breaking(store: Any, name: str) -> Any:
        opened.append(name)  # Once for the header, once for the data.
        second = name == "model-00002-of-00002.safetensors" and opened.count(name) == 2
        return stores._StreamReader(Breaking(), name) if second else whole(store, name)

    with monkeypatch.context() as patch:
        patch.setattr(stores.LocalStore, "open", breaking)
        with pytest.raises(CrossmeshError, match=r"00002-of-00002\.safetensors could not be read on: no answer"):
            run(base, adapter, tmp_path / "out")
    assert (tmp_path / ".out.partial" / "model-00001-of-00002.safetensors").is_file()
    assert not (tmp_path / "out").exists()
    run(base, adapter, tmp_path / "out")
    run(base, adapter, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("changed", ["adapter", "base"])
def test_what_another_adapter_or_base_left_is_not_gone_on_with(
    tmp_path: Path, parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    base, adapter = parts

    def interrupted(*rest: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("crossmesh.adapters.merge._copy_small", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(base, adapter, tmp_path / "out")
    assert (tmp_path / ".out.partial").is_dir()
    if changed == "adapter":
        path = adapter / "adapter_config.json"
        path.write_text(path.read_text().replace('"lora_alpha": 16', '"lora_alpha": 4'))
    else:
        path = base / "model-00001-of-00002.safetensors"
        path.write_bytes(path.read_bytes()[:-2] + b"\0\0")
    run(base, adapter, tmp_path / "out")
    run(base, adapter, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("of_adapter", "in_checkpoint"),
    [
        ("model.layers.0.mlp.up_proj", "model.language_model.layers.0.mlp.up_proj"),
        ("model.layers.0.mlp.up_proj", "language_model.model.layers.0.mlp.up_proj"),
        ("model.language_model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj"),
        ("model.language_model.layers.0.mlp.up_proj", "language_model.model.layers.0.mlp.up_proj"),
        ("lm_head", "language_model.lm_head"),
        ("model.language_model.layers.0.mlp.experts.3.w1", "model.language_model.layers.0.mlp.experts.3.w1"),
    ],
)
def test_the_decoder_of_a_multimodal_model_is_found_and_its_vision_tower_left_alone(
    tmp_path: Path, of_adapter: str, in_checkpoint: str
) -> None:
    random = np.random.default_rng(1)
    vision = "model.vision_tower.encoder.layers.0.mlp.up_proj.weight"
    arrays = {f"{in_checkpoint}.weight": random_array(random, (6, 4), BFLOAT16), vision: random_array(random, (6, 4), BFLOAT16)}
    write_checkpoint(tmp_path / "base", [arrays])
    write_peft(tmp_path / "adapter", {of_adapter: (random_array(random, (8, 4)), random_array(random, (6, 8)))})
    run(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    merged = load_file(tmp_path / "out" / "model.safetensors")
    assert merged[vision].tobytes() == arrays[vision].tobytes()
    assert merged[f"{in_checkpoint}.weight"].tobytes() != arrays[f"{in_checkpoint}.weight"].tobytes()


def test_a_base_other_than_the_recorded_one_is_refused_unless_it_is_wanted(tmp_path: Path, parts: tuple[Path, Path]) -> None:
    base, adapter = parts
    digest = run(base, adapter, tmp_path / "first").base_digest
    pair = {DOWN: (np.ones((8, 56), np.float32), np.ones((24, 8), np.float32))}
    write_peft(tmp_path / "ours", pair, {"crossmesh_base_weights": digest})
    assert run(base, tmp_path / "ours", tmp_path / "second").base_digest == digest
    path = base / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-2] + b"\0\0")
    with pytest.raises(InputError, match=rf"trained on other weights than these: it says {digest[:16]}"):
        run(base, tmp_path / "ours", tmp_path / "third")
    assert not list(tmp_path.glob("*third*"))
    run(base, tmp_path / "ours", tmp_path / "third", any_base=True)
    assert json.loads((tmp_path / "third" / "crossmesh.json").read_text())["made_from"]["any_base"] is True


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def of_other_shape(base: Path, adapter: Path) -> None:
    shutil.rmtree(adapter)
    write_peft(adapter, {Q: (np.ones((8, 23), np.float32), np.ones((40, 8), np.float32))})


def of_unknown_module(base: Path, adapter: Path) -> None:
    shutil.rmtree(adapter)
    write_peft(adapter, {"model.layers.7.self_attn.q_proj": (np.ones((8, 24), np.float32), np.ones((40, 8), np.float32))})


def of_experts(base: Path, adapter: Path) -> None:
    shutil.rmtree(adapter)
    write_peft(adapter, {"model.layers.0.experts.gate_up_proj": (np.ones((8, 24), np.float32), np.ones((40, 8), np.float32))})


def of_tied_head(base: Path, adapter: Path) -> None:
    shutil.rmtree(adapter)
    write_peft(adapter, {"lm_head": (np.ones((8, 24), np.float32), np.ones((32, 8), np.float32))})


def of_integers(base: Path, adapter: Path) -> None:
    shard = base / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes().replace(b'"BF16"', b'"U16" ', 1))


def absent_tensor(base: Path, adapter: Path) -> None:
    edit_json(base / "model.safetensors.index.json", lambda index: index["weight_map"].update(ghost="model-00001-of-00002.safetensors"))


def pickles(base: Path, adapter: Path) -> None:
    for file in (*base.glob("*.safetensors"), base / "model.safetensors.index.json"):
        file.unlink()
    (base / "pytorch_model.bin").write_bytes(b"pickle")


def long_header(base: Path, adapter: Path) -> None:
    path = base / "model-00002-of-00002.safetensors"
    path.write_bytes((1 << 40).to_bytes(8, "little") + path.read_bytes()[8:])


def broken_header(base: Path, adapter: Path) -> None:
    path = base / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:8] + b"<" + path.read_bytes()[9:])


def truncated(base: Path, adapter: Path) -> None:
    path = base / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-3])


def set_base(**values: Any) -> Callable[[Path, Path], None]:
    return lambda base, adapter: edit_json(base / "config.json", lambda config: config.update(values))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (of_other_shape, r"q_proj with 23 inputs and 40 outputs; .* is \[40, 24\], not \[40, 23\]: it is an adapter of another base"),
        (of_unknown_module, r"adapts model\.layers\.7\.self_attn\.q_proj, which .* does not have"),
        (of_experts, r"experts\.gate_up_proj: experts are not adapted.*fused in one tensor"),
        (of_tied_head, "is the embedding"),
        (of_integers, r"is quantized \(model\.layers\.1\.mlp\.down_proj\.weight is U16\).*unquantized"),
        (set_base(quantization_config={"load_in_4bit": True}), r"is quantized \(quantization_config in config\.json\).*unquantized"),
        (lambda base, adapter: (base / "model-00002-of-00002.safetensors").unlink(), "lacks model-00002-of-00002.safetensors"),
        (lambda base, adapter: (base / "config.json").unlink(), r"has no config\.json"),
        (absent_tensor, "names ghost in model-00001-of-00002.safetensors, but no file has it"),
        (lambda base, adapter: (base / "model.safetensors.index.json").write_text("{"), "index.json cannot be read"),
        (lambda base, adapter: (base / "model.safetensors.index.json").unlink(), "2 safetensors files and no"),
        (pickles, r"only pickled weights \(pytorch_model\.bin\)"),
        (long_header, "00002.safetensors is damaged: its header claims"),
        (broken_header, "is damaged: its header is not the JSON"),
        (truncated, "is damaged: its header describes"),
        (lambda base, adapter: (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin"), "is a pickle"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_written(
    tmp_path: Path, parts: tuple[Path, Path], spoil: Callable[[Path, Path], None], message: str
) -> None:
    base, adapter = parts
    spoil(base, adapter)
    with pytest.raises(InputError, match=message):
        run(base, adapter, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


def test_an_output_matrix_that_the_config_ties_is_refused_also_when_the_checkpoint_has_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", [{"lm_head.weight": np.ones((4, 4), np.float32)}], {"text_config": {"tie_word_embeddings": True}})
    write_peft(tmp_path / "adapter", {"lm_head": (np.ones((8, 4), np.float32), np.ones((4, 8), np.float32))})
    with pytest.raises(InputError, match="is the embedding"):
        run(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    edit_json(tmp_path / "base" / "config.json", lambda config: config["text_config"].update(tie_word_embeddings=False))
    assert run(tmp_path / "base", tmp_path / "adapter", tmp_path / "out").modules == 1


def test_a_folder_that_holds_something_is_left_as_it_is(tmp_path: Path, parts: tuple[Path, Path]) -> None:
    base, adapter = parts
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        run(base, adapter, tmp_path / "out")
    assert contents(tmp_path / "out") == {"mine": b"mine"}
    (tmp_path / "out" / "mine").unlink()
    run(base, adapter, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").is_file()


@pytest.mark.parametrize(
    ("dtype", "weight", "factor", "fits"),
    [
        (np.float16, 1, 28, True),
        (np.float16, 1, 100, False),
        (np.float16, 1, -100, False),
        (BFLOAT16, 3.3e38, 1, True),
        (BFLOAT16, -3.3e38, -1e19, False),
        (BFLOAT16, np.nan, 0, False),
        (np.float32, -np.inf, 0, False),
        (np.float32, -3.4e38, 0, True),
    ],
)
def test_values_that_the_type_cannot_hold_are_named(tmp_path: Path, dtype: Any, weight: float, factor: float, fits: bool) -> None:
    write_checkpoint(tmp_path / "base", [{f"{Q}.weight": np.array([[1, weight], [0, 0]]).astype(dtype)}])
    write_peft(tmp_path / "adapter", {Q: (np.full((8, 2), abs(factor), np.float32), np.full((2, 8), factor, np.float32))})
    if fits:
        assert run(tmp_path / "base", tmp_path / "adapter", tmp_path / "out").modules == 1
        return
    with pytest.raises(InputError, match=r"q_proj\.weight would hold values that are not finite in (F16|BF16|F32)"):
        run(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


def test_a_disk_that_fills_up_keeps_finished_shards_only(tmp_path: Path, parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    base, adapter = parts
    write, seen = rewriting._write, []

    def full(stream: Any, data: Any) -> None:
        seen.append(stream.name)
        if "00002-of" in str(stream.name):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(stream, data)

    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "_write", full)
        with pytest.raises(CrossmeshError, match=r"No space left on device: .* run the same command to continue"):
            run(base, adapter, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [path.name for path in (tmp_path / ".out.partial").glob("*.safetensors*")] == ["model-00001-of-00002.safetensors"]
    assert not list((tmp_path / ".out.partial").glob(".model*"))
    run(base, adapter, tmp_path / "out")
    run(base, adapter, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(CrossmeshError, match=r"has 0\.0 GB free"):
        run(base, adapter, tmp_path / "more")
    assert not list(tmp_path.glob("*more*"))


def test_a_base_in_an_object_store_is_read_in_place(tmp_path: Path, parts: tuple[Path, Path]) -> None:
    import fsspec

    base, adapter = parts
    memory = fsspec.filesystem("memory")
    memory.put(str(base), "/bucket/base", recursive=True)
    try:
        result = run("memory://bucket/base", adapter, tmp_path / "remote")
    finally:
        memory.rm("/bucket", recursive=True)
    local = run(base, adapter, tmp_path / "local")
    assert (result.base_digest, result.weights_digest) == (local.base_digest, local.weights_digest)
    files = contents(tmp_path / "local")
    assert {name: data for name, data in contents(tmp_path / "remote").items() if name != "crossmesh.json"} == {
        name: data for name, data in files.items() if name != "crossmesh.json"
    }
    with pytest.raises(InputError, match="memory://bucket/none could not be read"):
        run("memory://bucket/none", adapter, tmp_path / "none")
