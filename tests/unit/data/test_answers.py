"""What of an answer is learned, and that the judge reads the same."""

import pytest

from crossmesh.data.answers import answer_only
from crossmesh.data.markdown import code_blocks, strip_reasoning
from crossmesh.data.verilog import extract

MODULE = "module m(input a, output y);\nassign y = a;\nendmodule"
FENCED = f"```verilog\n{MODULE}\n```"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a\nb</think>\n\nanswer", "answer"),
        ("<think>a</think>x<think>b</think>y", "xy"),
        ("opened in the prompt</think> answer", "answer"),
        ("<think>never closed", ""),
        ("<think></think>answer", "answer"),
        ("no reasoning ", "no reasoning"),
    ],
)
def test_strip_reasoning(text: str, expected: str) -> None:
    assert strip_reasoning(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so <answer>\n```verilog\nmodule m;\n```\n</answer> done", "```verilog\nmodule m;\n```"),
        ("first\n```c\nint a;\n```\nthen\n```verilog\nmodule m;\nendmodule\n```\nbye", "```verilog\nmodule m;\nendmodule\n```"),
        ("<answer>old</answer> or <answer>new</answer>", "new"),
        ("````md\n```\ninner\n```\n````", "````md\n```\ninner\n```\n````"),
        ("inline ``` fence ``` only", ""),
        ("nothing fenced", ""),
    ],
)
def test_answer_only(text: str, expected: str) -> None:
    assert answer_only(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        f"Text\n{FENCED}\nbye",
        f"Text\n```verilog\n{MODULE}```\nbye",
        f"Here it is: {FENCED}\nbye",
        f"Here it is: {FENCED}\nUse it like this\n```\nm u(.a(a), .y(y));\n```\n",
        f"Solution: {FENCED}\nThis works because y follows a.\n```",
        f"Text\n```verilog\n{MODULE}\n",
        f"Text\n{FENCED}\n".replace("\n", "\r\n"),
        f"{FENCED}\nInstantiate:\n```verilog\nm u(.a(a),.y(y));\n```",
        f"{FENCED}\nRun:\n```sh\niverilog m.v\n```",
        f"<answer></answer>\n{FENCED}",
        f"<answer>see below</answer>\n{FENCED}",
        f"&lt;answer&gt;{FENCED}&lt;/answer&gt;",
        f"```verilog   \n{MODULE}\n```   \n",
        f"```verilog {MODULE}\n```",
        f"1. Write this:\n   ```verilog\n{MODULE}\n   ```\n2. Done.",
        f"{FENCED}\nTest it:\n```verilog\nmodule tb; m dut(); endmodule\n```",
        f"```verilog\nmodule m(input a); // old\nendmodule\n```\nBetter:\n{FENCED}",
        f"Forgotten:\n```verilog\n{MODULE}\n```verilog\nmodule m(input b, inp",
        f"<think>```verilog\nmodule x(input a);\nendmodule\n```</think>{FENCED}",
        f"<|channel>thought\nA wire: ```verilog\nmodule m(\n<channel|>{FENCED}",
        '```verilog\nmodule m(input a, output y);\nassign y = a;\nendmodule\n```\n```json\n{"pass": true}\n```',
        f"The design is {MODULE} and nothing else.",
    ],
)
def test_the_module_is_kept_alone(text: str) -> None:
    assert answer_only(text) == FENCED
    assert extract(answer_only(text), "m") == extract(text, "m") != extract("", "m")


def test_modules_that_a_design_needs_come_along() -> None:
    half = "module half(input a, output y); // one\nassign y = a;\nendmodule"
    top = "module m(input a, output y);\nhalf u(a, y);\nendmodule"
    text = f"First\n```verilog\n{half}\n```\nthen\n```verilog\n{top}\n```\nand a bench\n```verilog\nmodule tb(); m u(); endmodule\n```"
    assert answer_only(text) == f"```verilog\n{half}\n\n{top}\n```"


def test_tagged_answers_without_fences_stay_as_they_are() -> None:
    assert answer_only(f"<answer lang='v'>{MODULE}</answer>") == MODULE
    assert answer_only(f"&lt;answer&gt;{MODULE}&lt;/answer&gt;") == MODULE
    assert answer_only("`assign` and ```assign y = a;``` done") == "```\nassign y = a;\n```"


def test_other_languages_keep_their_code_and_not_the_command() -> None:
    assert answer_only("```python\nprint(1)\n```\nRun:\n```bash\npython a.py\n```") == "```python\nprint(1)\n```"
    assert [block.language for block in code_blocks("~~~c\nint a;\n~~~\n```\n\n```")] == ["c"]


@pytest.mark.parametrize(
    "text",
    [
        "Close with `</think>` and go on.",
        'The token "</think>" ends it.',
        "The marker </think> ends a thought.",
        "It ends with </think>, then the answer.",
        "```python\nend = '</think>'\n```",
        "```html\n<think>\nx\n</think>\n```",
        '```verilog\nmodule m(input a);\ninitial $display("</think>");\nendmodule\n```',
        "Wrap it in <think> and </think> tags.",
        "An open <think> is text here.",
        "`<|channel>thought` opens, `<channel|>` closes.",
    ],
)
def test_marks_that_are_text_stay(text: str) -> None:
    assert strip_reasoning(text) == text
    assert strip_reasoning(f"<think>Say </think>{text}") == text
    assert strip_reasoning(f"thought in the prompt\n</think>\n\n{text}") == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>use `</think>` here\n</think>\nx", "x"),
        ("<think>\n```\nfoo\n</think>\nAnswer:\n```\ncode\n```", "Answer:\n```\ncode\n```"),
        ("<|channel>thought\nhm\n<channel|>x", "x"),
        ("<|channel>thought\n<channel|>", ""),
        ("<|channel>thought\nnever closed", ""),
        ("opened in the prompt<channel|>x", "x"),
        ("[THINK]hm[/THINK]x", "x"),
        ("x\n<think>\nlater\n</think>\ny", "x\n\ny"),
    ],
)
def test_reasoning_in_any_form_goes(text: str, expected: str) -> None:
    assert strip_reasoning(text) == expected
