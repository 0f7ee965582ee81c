"""Every snippet of README and the documentation runs, and prints what its page shows.

A page is run from top to bottom in one namespace and one folder, offline. The folder holds small stand-ins for what the
pages assume that a reader has: texts, labelled data, and models under the names that the pages use. What cannot run
here stands below the comment ``<!-- not run: REASON -->``.
"""

import ast
import gzip
import io
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from itertools import pairwise
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from salience.cli import run
from salience.data.pairs import Pair
from salience.models import Seq2Seq, Seq2SeqConfig, load, sample, subword_tokenizer
from salience.training import Recipe
from salience.training.sequences import fit_pairs
from shapes import CORPUS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if not {"results", "decisions"} & set(page.relative_to(ROOT).parts)]

BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>[^\n]+?) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w+)\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
SHORTER = {
    "audit": ("--limit", "2", "--test", "permutation"),
    "heads": ("--limit", "8", "--orders", "1"),
    "dynamics": ("--epochs", "1", "--embedding", "8", "--hidden", "8", "--sentences", "4", "--checkpoints", "4"),
    "evaluate": ("--limit", "2", "--method", "gradient"),
    "train": ("--epochs", "1", "--model", "my-encoder"),
    "diffmask": ("--epochs", "1", "--limit", "8"),
    "copying": ("--steps", "1", "--seeds", "1", "--workers", "1"),
}
RETRAINED = ("--limit", "2", "--test", "deceptive_twin", "--epochs", "1")
"""Options that make a command shorter, added where the page does not set them. What it prints is then not compared."""


class Block(NamedTuple):
    line: int
    language: str
    body: str
    reason: str | None
    shown: str | None
    """The output below it."""


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, each with the ``text`` block that follows it directly."""
    text = page.read_text("utf-8")
    found = list(BLOCK.finditer(text))
    following: dict[int, str] = {
        a.start(): b["body"]
        for a, b in pairwise(found)
        if b["language"] == "text" and not text[a.end() : b.start()].strip()
    }
    return [
        Block(
            text.count("\n", 0, m.start("indent")) + 1,
            m["language"],
            re.sub(f"^{m['indent']}", "", m["body"], flags=re.MULTILINE),
            m["reason"],
            following.get(m.start()),
        )
        for m in found
    ]


SNIPPETS = {page: [b for b in blocks(page) if b.language in ("python", "sh", "console")] for page in PAGES}


# ---------------------------------------------------------------- what a reader has


@pytest.fixture(scope="session")
def belongings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and models under the names that the pages use."""
    folder = tmp_path_factory.mktemp("reader")
    rows = [json.loads(line) for line in sample()]
    _write_data(folder, rows)
    _write_models(folder)
    (folder / "src").symlink_to(ROOT / "src")
    return folder


def _write_data(folder: Path, rows: list[dict[str, Any]]) -> None:
    lines = [json.dumps(row | {"impermissible": [0]}) + "\n" for row in rows]
    (folder / "reviews.jsonl").write_text("".join(lines[:6]), "utf-8")
    (folder / "reviews.txt").write_text("".join(row["text"] + "\n" for row in rows[:3]), "utf-8")
    for name, part in (("train", slice(0, 32)), ("dev", slice(80, 88)), ("test", slice(90, 102))):
        (folder / f"{name}.jsonl").write_text("".join(lines[part]), "utf-8")
    with gzip.open(folder / "sst2.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(lines[:8])
    (folder / "reviews").mkdir()
    with gzip.open(folder / "reviews" / "a.csv.gz", "wt", encoding="utf-8") as file:
        file.write("key,body\na,A fine film.\nb,A bore.\n")
    pairs = 'name,premise,hypothesis\np1,"It is raining.","The street is wet."\np2,"A man sleeps.","Nobody sleeps."\n'
    (folder / "pairs.csv").write_text(pairs, "utf-8")
    texts = {"A fine film.": [0.0, 2.0, 1.0, 0.0], "A dull film.": [0.0, 3.0, 0.5, 0.0]}
    theirs = [{"text": text, "tokens": re.findall(r"\w+|\.", text), "scores": scores} for text, scores in texts.items()]
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who won?"}]
    (folder / "chat.json").write_text(json.dumps(chat), "utf-8")
    passages = [{"title": name, "text": f"The {name} won. It was late."} for name in ("fox", "dog")]
    (folder / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages), "utf-8")
    prompts = [{"text": f"The fox won. {a} was late. Who won?", "answer": "The fox"} for a in ("It", "The dog")]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts), "utf-8")
    (folder / "theirs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in theirs), "utf-8")


def _write_models(folder: Path) -> None:
    """A classifier, the encoder it could come from, a classifier of sentence pairs, and a language model."""
    words: Any = load("sentiment").tokenizer
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = {**sizes, "vocab_size": len(words), "max_position_embeddings": 256}
    labels = {0: "negative", 1: "positive"}
    relations = {0: "entailment", 1: "neutral", 2: "contradiction"}
    made: dict[str, PreTrainedModel] = {
        "my-model": BertForSequenceClassification(BertConfig(**config, id2label=labels)),
        "my-encoder": BertForMaskedLM(BertConfig(**config)),
        "my-nli-model": BertForSequenceClassification(BertConfig(**config, id2label=relations)),
    }
    made["my-model-of-another-seed"] = deepcopy(made["my-model"])
    for parameter in made["my-model-of-another-seed"].parameters():  # it should give most texts the same label
        parameter.data.add_(torch.randn_like(parameter), alpha=1e-3)
    for name, model in made.items():
        model.save_pretrained(folder / name)
        words.save_pretrained(folder / name)
    _write_language_model(folder / "gpt2")
    (folder / "my-lm").symlink_to(folder / "gpt2")
    _write_translator(folder / "my-translator")


def _write_translator(folder: Path) -> None:
    """An encoder-decoder that knows one sentence by heart."""
    pairs = [Pair("0", "Ein Mann schläft.", "A man sleeps.")]
    words = subword_tokenizer([text for pair in pairs for text in (pair.source, pair.answer)] * 3, 60)
    model = Seq2Seq.new(Seq2SeqConfig(words.get_vocab_size(), hidden=16, layers=1), words)
    for _ in fit_pairs(model, pairs, recipe=Recipe(epochs=60, batch=1, rate=2e-2, decay=0.0)):
        pass
    model.save(folder)


def _write_language_model(folder: Path) -> None:
    bytes_ = Tokenizer(models.BPE())
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    bytes_.train_from_iterator([*CORPUS, *["The capital of France is Paris, not London."] * 20], trainer)
    end = "<|endoftext|>"
    words = PreTrainedTokenizerFast(tokenizer_object=bytes_, bos_token=end, eos_token=end)
    words.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    words.save_pretrained(folder)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(vocab_size=bytes_.get_vocab_size(), **sizes)).save_pretrained(folder)


@pytest.fixture
def here(belongings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the page's own, with all of these in it, and a terminal of 80 columns."""
    for path in belongings.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


# ---------------------------------------------------------------- running


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # of torch, for readers without a GPU
@pytest.mark.parametrize("page", [p for p in PAGES if SNIPPETS[p]], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_snippets_of_a_page(page: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in SNIPPETS[page]:
        if block.reason is not None:
            continue
        place = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "python":
            printed, complete = run_python(block, place, namespace), True
        else:
            printed, complete = run_commands(block, place, monkeypatch)
        if block.shown is not None and complete:
            compare(block.shown, printed, place)


def run_python(block: Block, place: str, namespace: dict[str, Any]) -> str:
    """Run statement by statement. A comment behind an expression that reads like a value is compared with it.

    As in a notebook, the value of the last expression is printed.
    """
    out = io.StringIO()
    lines, nodes = block.body.splitlines(), ast.parse(block.body).body
    with redirect_stdout(out):
        for node in nodes:
            source = ast.get_source_segment(block.body, node) or ""
            if not isinstance(node, ast.Expr):
                exec(compile(ast.Module([node], []), place, "exec"), namespace)
                continue
            value = eval(compile(ast.Expression(node.value), place, "eval"), namespace)
            end = node.end_lineno or 0
            comment = lines[end - 1][node.end_col_offset or 0 :].partition("#")[2].strip()
            if not comment and end < len(lines) and lines[end].startswith("# "):
                comment = lines[end][2:]
            if node is nodes[-1] and value is not None:
                print(value)
            if reads_like_a_value(comment):
                assert same(comment, repr(plain(value))), f"{place}: {source} is {value!r}, not {comment}"
    return out.getvalue()


def reads_like_a_value(comment: str) -> bool:
    try:
        node = ast.parse(comment, mode="eval").body
    except SyntaxError:
        return False
    return not isinstance(node, ast.Name | ast.Attribute | ast.Compare | ast.BinOp | ast.BoolOp)


def plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def run_commands(block: Block, place: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, bool]:
    """Run a block of commands; also returns whether all of them ran in full, and not shortened."""
    printed, complete = "", True
    for command in commands(block.body):
        before = printed
        for arguments, source, target in pipeline(command):
            whole, shortened = shortened_command(arguments)
            complete &= not shortened
            given = before if source is None else Path(source).read_text("utf-8")
            output, errors, code = execute(whole, given, monkeypatch)
            assert code == 0, f"{place}: {command} exits with {code}: {errors}"
            if target is not None:
                Path(target).write_text(output, "utf-8")
                output = ""
            before = output
            printed += output + errors
    return printed, complete


def commands(body: str) -> list[str]:
    lines = re.sub(r"\\\n\s*", " ", body).splitlines()
    return [line.removeprefix("$ ") for line in lines if line.strip() and not line.startswith("#")]


def pipeline(command: str) -> Iterator[tuple[list[str], str | None, str | None]]:
    """The commands of a pipe: arguments, and the files that are read and written."""
    parts: list[list[str]] = [[]]
    lexer = shlex.shlex(command, posix=True, punctuation_chars="<>|")
    lexer.whitespace_split = True
    for token in lexer:
        if token == "|":
            parts.append([])
        else:
            parts[-1].append(token)
    for part in parts:
        files = {sign: part.pop(part.index(sign) + 1) if sign in part else None for sign in "<>"}
        yield [word for word in part if word not in files], files["<"], files[">"]


def shortened_command(arguments: list[str]) -> tuple[list[str], bool]:
    name = next((n for n in SHORTER if arguments[: 1 + len(n.split())] == ["salience", *n.split()]), None)
    options = RETRAINED if "--retrain" in arguments else SHORTER.get(name or "", ())
    pairs = list(pairwise(options))[::2]
    missing = [word for option, value in pairs if option not in arguments for word in (option, value)]
    return [*arguments, *missing], bool(missing)


def execute(arguments: list[str], given: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, int]:
    """Run ``salience`` in this process; a few other commands are done by hand, all others are an error."""
    out, err = io.StringIO(), io.StringIO()
    match arguments:
        case ["salience", *rest]:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
            with redirect_stdout(out), redirect_stderr(err):
                code = run(rest)
            return out.getvalue(), err.getvalue(), code
        case ["cat", file]:
            return Path(file).read_text("utf-8"), "", 0
        case ["cp", old, new]:
            Path(new).unlink(missing_ok=True)
            shutil.copy(old, new)
            return "", "", 0
        case ["jq", *_]:
            [json.loads(line) for line in given.splitlines()]
            return "", "", 0
        case _:
            pytest.fail(f"{arguments[0]} cannot run in the tests; say why above its block: <!-- not run: REASON -->")


# ---------------------------------------------------------------- comparing


NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
BARS = re.compile("[▏▎▍▌▋▊▉█]+")


def compare(shown: str, printed: str, place: str) -> None:
    """The shown lines are printed in this order; lines in between may be left out."""
    rest = iter(printed.splitlines())
    for line in shown.splitlines():
        if line.strip() in ("", "..."):
            continue
        assert any(same(line, other) for other in rest), f"{place}: {line!r} is not in the output:\n{printed}"


def same(shown: str, value: str) -> bool:
    """Whether two lines are the same up to spaces, the last digits of numbers and bars; ``...`` stands for anything."""
    parts = [NUMBER.split(part) for part in _even(shown).split("...")]
    pattern = ".*".join(f"({NUMBER.pattern})".join(map(re.escape, part)) for part in parts)
    found = re.fullmatch(pattern, _even(value), re.DOTALL)
    numbers = [n for part in _even(shown).split("...") for n in NUMBER.findall(part)]
    return found is not None and all(map(_close, numbers, found.groups()))


def _even(line: str) -> str:
    return " ".join(BARS.sub("▏", line).split())


def _close(a: str, b: str) -> bool:
    """Equal as far as the shown digits go. Numbers like 4.3e-05 are left over from rounding: only their size counts."""
    a, b = a.replace(",", ""), b.replace(",", "")
    if "e" in a:
        return isclose(float(a), float(b), rel_tol=0.5)
    if "." not in a:
        return float(a) == float(b)
    digits = len(a.partition(".")[2])
    return isclose(float(a), float(b), rel_tol=0.02, abs_tol=1.01 * 10.0**-digits)


def test_few_snippets_are_left_out_and_each_says_why():
    left_out = [b for page in PAGES for b in SNIPPETS[page] if b.reason is not None]
    models = [b for b in left_out if b.reason == "needs a language model"]  # none is bundled
    assert len(left_out) - len(models) <= 36
    assert all(b.reason for b in left_out)
