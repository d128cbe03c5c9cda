"""The samples file: what survives a crash, and what is refused."""

import json

import pytest

from crossmesh.errors import InputError
from crossmesh.evaluate.samples import Sample, SampleFile

IDENTITY = {"model": "base", "sampling": {"temperature": 0.0}}


def sample(index):
    return Sample("p1", index, 7, "module ü;\u2028endmodule\n", "stop", 3, 4)


def test_samples_come_back_and_a_torn_line_is_dropped_and_overwritten(tmp_path):
    path = tmp_path / "deep" / "samples.jsonl"
    with SampleFile(path, IDENTITY) as kept:
        kept.append(sample(0))
        kept.append(sample(1))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with SampleFile(path, IDENTITY) as kept:
        assert kept.samples == {("p1", 0): sample(0)}
        kept.append(sample(1))
    assert path.read_bytes() == whole


def test_a_file_torn_in_its_first_line_starts_anew(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b'{"identi')
    with SampleFile(path, IDENTITY) as kept:
        assert kept.samples == {}
    assert json.loads(path.read_text()) == {"identity": IDENTITY}


def test_answers_of_another_evaluation_are_refused_by_name_of_the_difference(tmp_path):
    path = tmp_path / "samples.jsonl"
    with SampleFile(path, IDENTITY) as kept:
        kept.append(sample(0))
    with pytest.raises(InputError, match=r"sampling differ"):
        SampleFile(path, {**IDENTITY, "sampling": {"temperature": 0.5}})


def test_damage_before_the_last_line_is_reported(tmp_path):
    path = tmp_path / "samples.jsonl"
    with SampleFile(path, IDENTITY) as kept:
        kept.append(sample(0))
        kept.append(sample(1))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{]\n" + lines[2])
    with pytest.raises(InputError, match="is damaged"):
        SampleFile(path, IDENTITY)


def test_half_characters_and_line_separators_of_every_kind_come_back(tmp_path):
    path = tmp_path / "samples.jsonl"
    odd = [Sample("p\u2028\x85", index, 7, text, "stop", 3, 4) for index, text in enumerate(("\ud835", "a\x0bb\x0cc\x85d\u2029e\rf\x1cg"))]
    with SampleFile(path, {**IDENTITY, "model": "m\ud835"}) as kept:
        for one in odd:
            kept.append(one)
    with SampleFile(path, {**IDENTITY, "model": "m\ud835"}) as kept:
        assert list(kept.samples.values()) == odd
