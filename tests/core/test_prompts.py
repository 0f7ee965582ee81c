"""What a user may ask with, and what each wrong input is answered."""

from pathlib import Path

import pytest

from salience.core.prompts import Message, Passage, Prompt
from salience.data.prompts import read_chat, read_passages
from salience.errors import BadInput

CHAT = [{"role": "user", "content": "Hello"}]


def test_what_becomes_a_prompt():
    assert Prompt.of("Hello").text == "Hello"
    assert Prompt.of(CHAT).messages == (Message("user", "Hello"),)
    assert Prompt.of({"messages": CHAT, "tools": [{"name": "f"}]}).tools == ({"name": "f"},)
    assert Prompt.of([5, 7]).ids == (5, 7)
    assert Prompt.of(Prompt.of(CHAT)) == Prompt.of(CHAT)
    assert hash(Prompt.of(CHAT)) == hash(Prompt.of(CHAT))


def test_the_call_of_a_tool_needs_no_content():
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    (_, message) = Prompt.of([*CHAT, {"role": "assistant", "content": None, "tool_calls": calls}]).messages
    assert message == Message("assistant", "", more={"tool_calls": calls})


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("  ", "the prompt is empty"),
        ([], "the prompt is empty"),
        (3, "a prompt is a text, a list of messages or a list of token ids, not 3"),
        ([4, -1], "numbered from 0, but there is -1"),
        ([True, False], "message 1 is not an object with role and content: True"),
        ([*CHAT, {"content": "x"}], "message 2 has no role"),
        ([*CHAT, {"role": "user"}], "message 2 has no content"),
        ([{"role": "user", "content": [{"type": "image"}]}], "content of message 1 is not a text"),
        ([{"role": 1, "content": "x"}], "role of message 1 is not a text"),
        ([{"role": "user", "content": " "}], r"message 1 \(user\) is empty"),
        ({"tools": []}, "expected the field 'messages'"),
        ({"messages": []}, "at least one message"),
        ({"messages": CHAT, "tools": "f"}, "'tools' must be a list of objects"),
    ],
)
def test_wrong_prompts_are_refused_in_one_line(prompt: object, message: str):
    with pytest.raises(BadInput, match=message) as error:
        Prompt.of(prompt)
    assert "\n" not in str(error.value)


def test_a_question_with_context():
    prompt = Prompt.with_context(" Who? ", ["Ada did. ", Passage("Bob slept.", "Bob"), Passage("Bob ate.", "Bob")])
    assert prompt.text == "Ada did.\n\nBob slept.\n\nBob ate.\n\nWho?"
    assert [(p.name, prompt.text[p.start : p.end], p.kind) for p in prompt.parts] == [
        ("document 1", "Ada did.", "document"),
        ("Bob 1", "Bob slept.", "document"),
        ("Bob 2", "Bob ate.", "document"),
        ("question", "Who?", "question"),
    ]


@pytest.mark.parametrize(
    ("question", "passages", "message"),
    [
        ("Who?", ["Ada.", " "], "passage 2 is empty"),
        ("Who?", [], "at least one passage"),
        ("Who?", "Ada.", "needs a list"),
        ("Who?", [3], "passage 1 is not a text: 3"),
        ("", ["Ada."], "the question is empty"),
    ],
)
def test_wrong_context_is_refused(question: str, passages, message: str):
    with pytest.raises(BadInput, match=message):
        Prompt.with_context(question, passages)


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, "utf-8")
    return file


def test_chats_from_files(tmp_path: Path):
    chat = '[{"role": "user", "content": "Hello"}]'
    assert read_chat(written(tmp_path, "a.json", chat)) == Prompt.of(CHAT)
    assert read_chat(written(tmp_path, "b.json", f'\ufeff{{"messages": {chat}}}')) == Prompt.of(CHAT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "chat.json is not JSON"),
        ("3", "chat.json: expected a list of messages"),
        ("[1]", "chat.json: message 1 is not an object"),
        ("[]", "chat.json: 'messages' must be a list of at least one"),
    ],
)
def test_a_chat_that_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(BadInput, match=message):
        read_chat(written(tmp_path, "chat.json", text))


def test_a_missing_chat_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_chat(tmp_path / "chat.json")


def test_passages_from_files(tmp_path: Path):
    rows = '{"text": "Ada did.", "title": "Ada"}\n{"text": "Bob slept.", "name": "Bob"}\n{"text": "We ate."}\n'
    assert read_passages(written(tmp_path, "a.jsonl", rows)) == [
        Passage("Ada did.", "Ada"),
        Passage("Bob slept.", "Bob"),
        Passage("We ate."),
    ]
    text = "Ada\ndid.\r\n \n\n\nBob slept.\n"
    assert read_passages(written(tmp_path, "a.txt", text)) == [Passage("Ada\ndid."), Passage("Bob slept.")]
    assert read_passages(written(tmp_path, "a.csv", "text,title\nAda did.,Ada\n")) == [Passage("Ada did.", "Ada")]


def test_passages_that_cannot_be_read_are_refused(tmp_path: Path):
    with pytest.raises(BadInput, match=r"line 2 of .*a.jsonl: column 'text' is empty"):
        read_passages(written(tmp_path, "a.jsonl", '{"text": "Ada did."}\n{"text": " "}\n'))
    with pytest.raises(BadInput, match="holds no passages"):
        read_passages(written(tmp_path, "a.txt", " \n\n"))
