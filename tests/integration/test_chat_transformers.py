"""Our rendering and tokens against transformers' `apply_chat_template`, in a process of its own: the driver side never imports it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.conversation import message

pytestmark = pytest.mark.integration

CHATML = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
TEMPLATES = {
    "own": None,
    "chatml": CHATML,
    "trimmed": "{{ bos_token }}" + CHATML.replace("message['content']", "message['content'] | trim"),
    "blocks": "{{ bos_token }}\n{%- for m in messages %}\n    {% if loop.first %}\n  {{ '[' + eos_token + ']' }}\n    {% endif %}\n"
    "    {%- if loop.index > 2 %}{% continue %}{% endif %}\n<|turn|>{{ m.role }}\n{{ m.content | trim }}<|end|>\n{% endfor %}\n",
    "json": "{% for m in messages %}{{ m | tojson }}{{ m.content | tojson(indent=2) }}{% endfor %}{{ tools is none }}{{ documents }}\n\n",
    "marked": CHATML.replace("{{ message['content'] }}", "{% generation %}{{ message['content'] }}{% endgeneration %}"),
    "date": "{{ strftime_now('%Y') }}" + CHATML,
}
CONVERSATIONS = [
    [message("user", "Write a module <m> & 'n'."), message("assistant", "```verilog\nmodule m;\nendmodule\n```")],
    [
        message("system", "é 日本 😀 12"),
        message("user", " a\n"),
        message("assistant", " b "),
        message("user", "<|end|>"),
        message("assistant", "c"),
    ],
]
PEER = """
import json, sys
from transformers import AutoTokenizer
folders, conversations = json.load(sys.stdin)
found = []
for folder in folders:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for conversation in conversations:
        for ask in (False, True):
            text = tokenizer.apply_chat_template(conversation, add_generation_prompt=ask, tokenize=False)
            tokens = tokenizer.apply_chat_template(conversation, add_generation_prompt=ask, tokenize=True, return_dict=True)["input_ids"]
            found.append([text, list(tokens)])
json.dump(found, sys.stdout)
"""


def test_equal_to_transformers_token_for_token(checkout: Path, tmp_path: Path) -> None:
    folders = []
    for name, template in TEMPLATES.items():
        folder = tmp_path / name
        shutil.copytree(checkout / "platform" / "crossmesh" / "models" / "tiny_tokenizer", folder)
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
        folders.append(folder)
    asked = json.dumps([[str(folder) for folder in folders], CONVERSATIONS])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    peer = subprocess.run([sys.executable, "-c", PEER], input=asked, env=environment, capture_output=True, text=True, check=False)
    assert peer.returncode == 0, peer.stderr
    ours = []
    for folder in folders:
        tokenizer = ChatTokenizer(folder)
        for conversation in CONVERSATIONS:
            for ask in (False, True):
                text = tokenizer.render(conversation, add_generation_prompt=ask)
                ours.append([text, tokenizer.encode(text)])
    assert ours == json.loads(peer.stdout)
    assert len(ours) == 4 * len(TEMPLATES)
