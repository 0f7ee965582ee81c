"""The text of given token ids, with the characters of each, also where the text does not tokenise back to them."""

from collections.abc import Iterable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from salience.core.executor import lock_of
from salience.core.text import Encoded, Span
from salience.models.huggingface.pieces import encoding_of

BROKEN = "\ufffd"
"""What decoding shows for bytes that are not a whole character."""

NEAR = 16
"""How many tokens before the given ones are decoded with them: spaces and characters of several tokens join."""


def spelled(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], before: Sequence[int] = ()) -> Encoded:
    """Return ids as a tokenised text, which continues that of the ids ``before``.

    Tokens of one character share its span. Control tokens, such as those that separate the turns of a chat, are
    special and keep their text.
    """
    near = list(before)[-NEAR:]
    with lock_of(tokenizer):
        base, whole = decoded(tokenizer, near), decoded(tokenizer, [*near, *ids])
        start = _common(base, whole)
        offsets = _tokenised(tokenizer, [*near, *ids], whole) or _decoded_step_by_step(tokenizer, near, ids, whole)
        tokens = tokenizer.convert_ids_to_tokens(list(ids))
    spans = [(max(0, a - start), max(0, b - start)) for a, b in offsets[len(offsets) - len(ids) :]]
    special = control_ids(tokenizer)
    return Encoded(whole[start:], tuple(ids), tuple(tokens), tuple(spans), tuple(i in special for i in ids))


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of ids as it is, with control tokens."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def control_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The ids of tokens that are no part of a text; an unknown word is one."""
    unknown: Any = tokenizer.unk_token_id
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return (added | set(tokenizer.all_special_ids)) - {unknown}


def _tokenised(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str) -> list[Span] | None:
    """The tokenizer's own offsets, if it makes these ids of the text."""
    if not tokenizer.is_fast:
        return None
    encoding = encoding_of(tokenizer, text)
    return list(encoding.offsets) if encoding.ids == list(ids) else None


def _decoded_step_by_step(
    tokenizer: PreTrainedTokenizerBase, near: Sequence[int], ids: Sequence[int], whole: str
) -> list[Span]:
    """What each token adds to the text of those before it; tokens of one character share what the last of them adds."""
    texts = (decoded(tokenizer, [*near, *ids[: count + 1]]) for count in range(len(ids)))
    return _growth(whole, _common(decoded(tokenizer, near), whole), texts)


def _growth(whole: str, start: int, texts: Iterable[str]) -> list[Span]:
    """Spans of the whole text by which texts, each of one token more than the one before, agree with it further."""
    spans: list[Span] = []
    waiting = 0  # tokens whose character is not complete
    for text in texts:
        end = max(start, _common(text, whole))
        if end > start:
            spans += [(start, end)] * (waiting + 1)
            start, waiting = end, 0
        elif not text.endswith(BROKEN):
            spans += [(start, start)] * (waiting + 1)
            waiting = 0
        elif len(text) > end:
            waiting += 1
        else:  # a part of a character that is never completed
            spans.append(spans[-1] if spans else (start, start))
    return spans + [(start, len(whole))] * waiting


def _common(text: str, whole: str) -> int:
    """How many characters two texts have in common at their beginning."""
    if whole.startswith(text):
        return len(text)
    return next((at for at, (a, b) in enumerate(zip(text, whole, strict=False)) if a != b), len(whole))
