"""Recorded traces: columns by name, times by unit, and whatever is not known refused with the form."""

import gzip
import os
from pathlib import Path
from statistics import fmean

import pytest

from crossmesh.errors import InputError
from crossmesh.plan.serving.traces import Trace, read_trace


def read(tmp_path: Path, text: str) -> Trace:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    return read_trace(path)


def rows(trace: Trace) -> list[tuple[float, int, int]]:
    return [(round(one.arrival_s, 6), one.prompt, one.output) for one in trace.requests]


EXPECTED = [(0.0, 374, 44), (4.0, 396, 109)]


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:50.6805900,396,109\r\n2023-11-16 18:15:46.6805900,374,44",
        "GeneratedTokens,TIMESTAMP,ContextTokens\n44,2023-11-16 18:15:46.6805900,374\n109,2023-11-16 18:15:50.6805900,396\n",
        "\ufeffTIMESTAMP;ContextTokens;GeneratedTokens\n2024-05-12 00:00:00.5+00:00;374;44\n2024-05-12 02:00:04.5+02:00;396;109\n",
        "arrival_s,prompt_tokens,output_tokens\n1.5,374,44\n\n5.5,396,109\n",
        ",arrival_s,prompt_tokens,output_tokens\n0,1.5,374,44\n1,5.5,396,109\n",
        "output_tokens,prompt_tokens,arrival_ms\n44,374,1500\n109,396,5500\n",
        "arrival time (ms)\tinput tokens\toutput tokens\n1500\t374\t44\n5500\t396\t109\n",
        "Timestamp[us],ContextTokens,GeneratedTokens\n1500000,374,44\n5500000,396,109\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,374,44,418,API log\n9,GPT-4,396,109,505,API log\n",
        "Log Type,Response tokens,Request tokens,Session ID,Elapsed time,Timestamp\nAPI log,44,374,7,1.5,5\nAPI log,109,396,7,2.5,9.0\n",
        '{"timestamp": 27000, "input_length": 374, "output_length": 44, "hash_ids": [46]}\n'
        '{"timestamp": 31000, "input_length": 396, "output_length": 109, "hash_ids": [46]}\n',
        '{"output_length": 44, "input_length": 374, "timestamp": 27000}\n\n{"input_length": 396, "output_length": 109, "timestamp": 31000}',
        '{"arrivalTimeMs": 0.5, "promptTokens": 374, "completionTokens": 44}\n'
        '{"arrivalTimeMs": 4000.5, "promptTokens": 396, "completionTokens": 109}',
    ],
)
def test_columns_are_read_by_their_names_and_times_by_their_units(tmp_path: Path, text: str) -> None:
    assert rows(read(tmp_path, text)) == EXPECTED


def test_hashes_count_wherever_a_row_has_them(tmp_path: Path) -> None:
    without = '{"timestamp": 27000, "input_length": 374, "output_length": 44}\n'
    found = read(tmp_path, without + '{"timestamp": 31000, "input_length": 396, "output_length": 109, "hash_ids": [46]}\n')
    assert [one.hashes for one in found.requests] == [(), (46,)]
    assert found.block


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_dates_without_a_zone_do_not_jump_with_this_machines_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    import time

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    heading = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    spring = read(tmp_path, heading + "2024-03-31 01:59:59,10,1\n2024-03-31 03:00:01,10,1\n")
    autumn = read(tmp_path, heading + "2023-11-05 00:30:00,10,1\n2023-11-05 03:30:00,10,1\n")
    monkeypatch.undo()
    time.tzset()
    assert spring.requests[-1].arrival_s == 3602.0
    assert autumn.requests[-1].arrival_s == 3 * 3600.0


def test_failed_requests_of_burstgpt_are_left_out_and_counted(tmp_path: Path) -> None:
    heading = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    trace = read(tmp_path, heading + "1,GPT-4,10,0,10,API log\n2,GPT-4,11,3,14,API log\n3,GPT-4,12,0,12,API log\n")
    assert rows(trace) == [(0.0, 11, 3)]
    assert trace.notes == ("2 of the trace's 3 requests failed (no token in the answer) and are left out.",)


def test_the_size_of_a_hashed_block_is_the_one_that_fits_every_prompt(tmp_path: Path) -> None:
    row = '{"timestamp": 1, "input_length": %d, "output_length": 1, "hash_ids": %s}\n'
    assert read(tmp_path, row % (6955, [*range(14)]) + row % (512, [3])).block == 512
    assert read(tmp_path, row % (6955, [*range(435)]) + row % (17, [3, 4])).block == 16
    with pytest.raises(InputError, match="hash_ids do not fit the prompts in blocks of 512"):
        read(tmp_path, row % (6955, [*range(14)]) + row % (17, [3, 4]))
    assert read(tmp_path, "arrival_s,prompt_tokens,output_tokens\n1,2,3\n").block == 0


FORM = r"Needed: .*arrival_s \(or arrival_ms.*Azure.*BurstGPT.*Mooncake"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column says the arrival time"),
        ("2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50,396,109\n", "its first line has values and no names of columns: 2023"),
        ("0.5,374,44\n1.5,396,109\n", "its first line has values and no names of columns: 0.5,374,44"),
        ("a,b,c\n1,2,3\n", "the column 'a' is not known"),
        ("time,prompt,answer\n1,2,3\n", "the column 'prompt' is not known"),
        ("arrival_s,prompt_tokens,output_tokens,priority\n1,2,3,4\n", "the column 'priority' is not known"),
        ("arrival_s,arrival_ms,prompt_tokens,output_tokens\n1,2,3,4\n", "both 'arrival_s' and 'arrival_ms' say the arrival time"),
        ("arrival_s,prompt_tokens\n1,2\n", "no column says the tokens of the answer; it has arrival_s, prompt_tokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n0.5,374,44\n", "line 2 has the time 0.5 without a unit"),
        ("timestamp,prompt_tokens,output_tokens\n1500,374,44\n", "line 2 has the time 1500 without a unit"),
        (
            '{"timestamp": 61.114, "input_length": 3, "output_length": 4}',
            "line 1 has the time 61.114, and Mooncake's are whole milliseconds",
        ),
        ('{"timestamp": 61, "input_length": 3}', "no column says the tokens of the answer"),
        ('{"timestamp": 1, "input_length": 3, "output_length": 4}\n{"timestamp": 2, "input_length": 3}', "line 2 has no 'output_length'"),
        ('{"timestamp": 1, "input_length": 3, "output_length": 4}\n{"timestamp": 2', "JSONDecodeError"),
        ("arrival_s,prompt_tokens,output_tokens\n", "there is no request in it"),
        ("arrival_s,prompt_tokens,output_tokens\n1,2\n", "line 2 has 2 values for 3 columns"),
        ("arrival_s,prompt_tokens,output_tokens\n1,2,0\n", "line 2 has a prompt of 2 and an answer of 0"),
        ("arrival_s,prompt_tokens,output_tokens\n1,2.5,1\n", "line 2 has '2.5' where a number of tokens"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,2,1\n", "line 2 has the time nan"),
        ("arrival,prompt_tokens,output_tokens\nsoon,2,1\n", "line 2 has the time soon"),
    ],
)
def test_what_is_not_known_is_refused_with_the_form(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=FORM) as refused:
        read(tmp_path, text)
    assert said in str(refused.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"arrival_s,prompt_tokens,output_tokens\n1,2,3\n"))
    with pytest.raises(InputError, match=FORM):
        read_trace(path)


@pytest.mark.skipif("CROSSMESH_TEST_DATA" not in os.environ, reason="needs CROSSMESH_TEST_DATA")
def test_the_azure_trace() -> None:
    requests = read_trace(Path(os.environ["CROSSMESH_TEST_DATA"]) / "traces" / "AzureLLMInferenceTrace_conv.csv").requests
    assert len(requests) == 19_366
    assert fmean(one.prompt for one in requests) == pytest.approx(1154.7, abs=0.1)
    assert requests[-1].arrival_s == pytest.approx(3501.72, abs=0.01)
