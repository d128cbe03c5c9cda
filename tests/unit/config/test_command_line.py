"""Mistakes of a command line, each met with one message that says how it is written right; what it says is tried."""

import re
import shlex
import signal
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from crossmesh.config.command_line import command, hydra_arguments, value_text
from crossmesh.config.compose import compose_spec, run_job
from crossmesh.config.job import JobKeys
from crossmesh.errors import InputError

CONF = Path(__file__).resolve().parents[3] / "conf"


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["--experiment", "demo"], ["the flag --experiment does not exist", "experiment=VALUE"]),
        (["--model=x"], ["the flag --model does not exist", "model=x"]),
        (["--learning-rate", "1e-4"], ["learning_rate=VALUE"]),
        (["-x"], ["the flag -x does not exist"]),
        (["--experimental-rerun", "a.pickle"], ["--experimental-rerun is refused", "unpickle"]),
        (["--experimental-rerun=a.pickle"], ["--experimental-rerun is refused"]),
        (["demo"], ["Cannot read 'demo'", "key=value"]),
        (["data.source=~/rows.jsonl"], ["~ is not expanded"]),
    ],
)
def test_what_hydra_does_not_have_is_refused_by_name(given, parts):
    with pytest.raises(InputError) as caught:
        hydra_arguments(given)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "given", [["-m", "a=1,2"], ["--cfg", "job"], ["-c", "job", "--resolve"], ["--info", "config"], ["--help"], ["model={a:1}"]]
)
def test_what_hydra_reads_is_left_as_it_is(given):
    assert hydra_arguments(given) == given


@pytest.mark.parametrize("path", ["/données/rows.jsonl", "/a#b/rows.jsonl", "/a b;c/rows", "/数据/rows.jsonl", "/a&b<c>/r!^.jsonl"])
def test_a_path_with_any_sign_reaches_the_spec_as_it_was_typed(path):
    overrides = hydra_arguments([f"data.source={path}"])
    assert compose_spec(CONF, *overrides).data.source == path


@pytest.mark.parametrize("given", ["name=a=b", "data.source=/a'b", "storage.root=/a(b", "serve.adapters=[a:/é]"])
def test_what_could_mean_several_things_is_shown_as_it_is_written(given):
    with pytest.raises(InputError) as caught:
        hydra_arguments([given])
    assert "Write: " in str(caught.value)


def test_the_way_that_a_message_shows_works():
    with pytest.raises(InputError) as caught:
        hydra_arguments(["name=a=b"])
    shown = re.search(r"Write: (.*)", str(caught.value))[1]
    (argument,) = shlex.split(shown)
    assert argument == "name='a=b'"
    assert hydra_arguments([argument]) == [argument]


def test_a_command_is_shown_as_a_shell_takes_it():
    arguments = ["-m", "batch.micro=1,2", "runs=[a,b]", "data.source='/a b'", "tune.space={optim.learning_rate:[1e-3,3e-3]}"]
    shown = command("python jobs/finetune.py", arguments)
    assert shlex.split(shown)[2:] == arguments
    assert "runs=[a,b]" in shown


def test_a_slow_job_says_at_once_that_it_starts_and_a_terminated_one_ends_as_an_interrupted_one(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["finetune.py", f"storage.root={tmp_path}", "name=mine"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    GlobalHydra.instance().clear()
    received = []

    def run(job):
        received.append(capsys.readouterr().err)
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        run_job("finetune", JobKeys, run, CONF, slow=True)
    assert received == ["crossmesh: finetune is starting: mine\n"]
    assert ended.value.code == 130
    assert "interrupted" in capsys.readouterr().err


def said(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["finetune.py", *arguments])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # What run_job sets, given back after the test.
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit) as ended:
        run_job("finetune", JobKeys, lambda job: None, CONF)
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["model=Qwen/Qwen3-0.6B"], ["model.family=qwen3 model.weights=hf://Qwen/Qwen3-0.6B"]),
        (["model=meta-llama/Llama-3.2-1B"], ["model.family=llama model.weights=hf://meta-llama/Llama-3.2-1B"]),
        (["model=google/gemma-3-1b-it"], ["model.family=gemma3 model.weights=hf://google/gemma-3-1b-it"]),
        (["model=hf://owner/some"], ["model.weights=hf://owner/some", "FAMILY"]),
        (["model=/models/qwen2.5"], ["model.family=qwen2 model.weights=/models/qwen2.5"]),
        (["data=owner/chat"], ["data.source=hf://datasets/owner/chat"]),
        (["data=/rows.jsonl"], ["data.source=/rows.jsonl"]),
        (["hydra/launcher=rey"], ["hydra/launcher=rey", "Allowed: basic, ray.", "Did you mean hydra/launcher=ray?"]),
        (["lr=1e-4"], ["the key 'lr' does not exist", "Did you mean optim.learning_rate?"]),
        (["lora_r=8"], ["Did you mean lora.rank?"]),
        (["optim.lr=1e-4"], ["Did you mean optim.learning_rate?"]),
        (["learning_rate=1e-4"], ["Did you mean optim.learning_rate?"]),
        (["per_device_train_batch_size=2"], ["Did you mean batch.micro?"]),
        (["optim.steps=2", "optim.steps=abc"], ["optim.steps=abc: ", "a whole number"]),
        (["batch.micro=1,2"], ["batch.micro=1,2", "-m batch.micro=1,2"]),
        (["lora.targets=q,k"], ["a list goes in brackets", "lora.targets=[q,k]"]),
        (["name=a,b"], ["-m name=a,b", "name='a,b'"]),
    ],
)
def test_a_usual_mistake_is_one_line_with_what_to_write(arguments, parts, monkeypatch, capsys):
    message = said(monkeypatch, capsys, *arguments)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "value",
    [
        "a,b",
        "é",
        "  leading",
        "trailing ",
        "true",
        "null",
        "1",
        "1e-4",
        "",
        "a'b",
        'a"b',
        "a\\",
        "a\\'b",
        "C:\\x",
        "[a]",
        "{a:1}",
        "a=b",
        "~/x",
        "a#b",
        "plain",
        "hf://owner/name",
        None,
        True,
        False,
        3,
        0.000123456789,
        1e-05,
        0.1,
        123456789.125,
        ["a,b", 1, None],
        {"q_proj": 8, "x": [True]},
    ],
)
def test_a_value_is_written_as_hydra_reads_it_back(value):
    found = OverridesParser.create().parse_override(f"key={value_text(value)}").value()
    assert found == value
