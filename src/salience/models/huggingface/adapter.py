"""The one adapter to Hugging Face classifiers and causal language models."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from salience import batching
from salience.errors import BadInput, UnsupportedModel, unknown
from salience.models.huggingface.attention import Watch, follows_interface, written_out
from salience.models.huggingface.head import Head, find_head
from salience.models.huggingface.hooks import Call, block_calls, hidden_states, no_hooks_left, replaced_embeddings
from salience.models.huggingface.prefix import keeps_everything, kept, resumed, seen
from salience.models.huggingface.tokens import encode
from salience.passes import frozen
from salience.types import Batch, Block, Edit, Encoded, Link, Output, Prefix, Text, Weights


@dataclass(eq=False)
class HuggingFace:
    """A sequence classifier or a causal language model, with its tokenizer. The module is never changed.

    Without a ``budget``, as many tokens go into a pass as are fast and fit into memory.
    """

    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    budget: int = 0
    call: Callable[..., Any] | None = None
    """What is called in place of the module: a wrapper around it, such as those that train on many devices."""
    _heads: dict[str | None, Head] = field(default_factory=dict[str | None, Head], init=False, repr=False)

    def __post_init__(self) -> None:
        if self.module.config.is_encoder_decoder:
            raise UnsupportedModel(
                f"{type(self.module).__name__} is an encoder-decoder, which reads its text twice; explain a model "
                "with an encoder or a decoder alone"
            )
        self.budget = self.budget or batching.fits_memory(self._bytes_per_token, self.module.device)

    @property
    def _bytes_per_token(self) -> int:
        """What a forward pass keeps for the backward pass: about 17 d + 2.5 h t numbers per token and layer.

        The count is that of Korthikanti et al. 2022, arXiv:2205.05198, eq. 2, for texts of 512 tokens.
        """
        size, heads = int(self._config.hidden_size), int(getattr(self._config, "num_attention_heads", 0) or 0)
        return self.layers * (17 * size + 5 * heads * 256) * self.module.dtype.itemsize

    @cached_property
    def _config(self) -> Any:
        return self.module.config.get_text_config()

    @cached_property
    def generates(self) -> bool:
        """Whether the labels are the vocabulary: the model says the next token."""
        return self.module.can_generate()

    @property
    def labels(self) -> Sequence[str]:
        return self._labels

    @cached_property
    def _labels(self) -> Sequence[str]:
        if self.generates:
            return self.tokenizer.convert_ids_to_tokens(list(range(self._config.vocab_size)))
        names: Any = self.module.config.id2label
        return tuple(names[i] for i in range(len(names)))

    @property
    def link(self) -> Link:
        if self.generates:
            return "softmax"
        problem = self.module.config.problem_type
        if problem == "multi_label_classification":
            return "sigmoid"
        return "identity" if problem == "regression" or len(self.labels) == 1 else "softmax"

    @property
    def layers(self) -> int:
        return int(self._config.num_hidden_layers)

    @property
    def causal(self) -> bool:
        return self._causal

    @property
    def replacements(self) -> Mapping[str, int]:
        ids = {k: getattr(self.tokenizer, f"{k}_token_id", None) for k in ("mask", "unk", "pad")}
        return {k: int(v) for k, v in ids.items() if v is not None and v < self.words.num_embeddings}

    @property
    def words(self) -> nn.Embedding:
        """The word embedding layer."""
        found = self.module.get_input_embeddings()
        if not isinstance(found, nn.Embedding):
            raise UnsupportedModel(f"{self.name} has no word embedding layer, so its tokens cannot be scored")
        return found

    @property
    def device(self) -> torch.device:
        return self.words.weight.device

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        named = self.tokenizer.model_max_length
        limit = int(min(self._positions, named)) if named > 0 else self._positions
        return encode(self.tokenizer, texts, limit, segments=self._has_segments)

    @cached_property
    def _positions(self) -> int:
        return positions(self.module)

    @property
    def _has_segments(self) -> bool:
        """Whether the model has a table of token types; GPT-2 would look them up among its words."""
        return "token_type_ids" in self._parameters and bool(getattr(self._config, "type_vocab_size", 0))

    def batch(self, encoded: Sequence[Encoded]) -> Batch:
        if len({len(e) for e in encoded}) > 1 and not self._minds_the_mask:
            raise UnsupportedModel(
                f"{self.name} reads padding as if it were text, so texts of different length cannot share a pass. "
                "Explain them one by one."
            )
        return batching.collate(encoded, self._pad or 0, self.device)

    @property
    def _pad(self) -> int | None:
        found = self._config.pad_token_id
        found = found[0] if isinstance(found, list) else found
        return None if found is None or found < 0 else found

    def resolve(self, label: str | int) -> int:
        if isinstance(label, str):
            return self._next_token(label) if self.generates else self._class(label)
        count = self._config.vocab_size if self.generates else len(self.labels)
        if 0 <= label < count:
            return label
        raise BadInput(f"there is no label number {label}: {self.name} has {count}, numbered from 0")

    def _class(self, label: str) -> int:
        folded = [name.casefold() for name in self.labels]
        if folded.count(label.casefold()) == 1:
            return folded.index(label.casefold())
        if label.isdecimal():
            return self.resolve(int(label))
        raise BadInput(unknown(label, self.labels, f"label of {self.name}"))

    def _next_token(self, label: str) -> int:
        """A next token by its text; the form with a leading space wins, since that is how a word goes on a text."""
        for form in (f" {label.lstrip()}", label):
            ids = self.tokenizer.encode(form, add_special_tokens=False)
            if len(ids) == 1:
                return int(ids[0])
        pieces = self.tokenizer.tokenize(label)
        raise BadInput(
            f"{label!r} is {len(pieces)} tokens for this tokenizer ({' '.join(pieces)}); the target of a language "
            f"model is one next token, for example {self.tokenizer.decode([ids[0]])!r}"
        )

    def label(self, index: int) -> str:
        if not self.generates:
            return self.labels[index]
        # Said twice, a token shows whether it brings a space: some tokenizers drop it at the beginning of a text.
        once, twice = (str(self.tokenizer.decode([index] * times)) for times in (1, 2))
        text = twice[len(once) :]
        # A piece of a character has no text of its own; its token tells it from others.
        return self.labels[index] if not text or "\ufffd" in text else text

    def embed(self, batch: Batch) -> Float[Tensor, "b t d"]:
        with torch.no_grad():
            return self.words(batch.ids)

    def read_from(self, batch: Batch) -> Float[Tensor, "b t"]:
        if self._reads == "mean":
            return batch.mask / batch.mask.sum(1, keepdim=True)
        kept = batch.mask
        if self._reads == "last" and not self.generates and self._pad is not None:
            kept = batch.mask & (
                batch.ids != self._pad
            )  # decoders skip every padding token at the end, also the text's
        order = torch.arange(batch.width, device=self.device)
        at = (kept * order).argmax(1) if self._reads == "last" else torch.zeros_like(batch.ids[:, 0])
        return nn.functional.one_hot(at, batch.width).float()

    def __call__(
        self,
        batch: Batch,
        *,
        embeddings: Float[Tensor, "b t d"] | None = None,
        edit_attention: Edit | None = None,
        edit_hidden: Edit | None = None,
        hidden: bool = False,
        attention: Weights | None = None,
    ) -> Output:
        self._check_sight(hidden or edit_hidden is not None, attention is not None)
        start = self.words(batch.ids) if embeddings is None else embeddings
        watch = Watch(edit_attention, attention)
        with ExitStack() as stack:
            stack.enter_context(replaced_embeddings(self.module, start))
            states: list[Tensor] = []
            if hidden or edit_hidden is not None:
                states = stack.enter_context(hidden_states(self.module, edit_hidden))
            options: dict[str, Any] = {}
            if attention is not None or edit_attention is not None:
                options = stack.enter_context(self._watched(watch))
            found = self._run(batch, options, self.call)
        weights = self._weights(watch, found)
        if states and len(states) != self.layers + 1:
            raise UnsupportedModel(f"{self.name}: {len(states) - 1} of {self.layers} layers could be read")
        return Output(self._logits(found.logits, batch), start, tuple(states if hidden else ()), weights)

    def _check_sight(self, hidden: bool, attention: bool) -> None:
        """What is shown must be what the prediction is made of."""
        kind = type(self.module).__name__
        if hidden and not self._shows_hidden:
            raise UnsupportedModel(f"what leaves the layers of {kind} could not be told from other states")
        if attention and not follows_interface(self.module) and not self._same_with_attention:
            raise UnsupportedModel(
                f"{kind} computes something else when it is asked for its attention weights, so they would not be "
                "those of its prediction"
            )

    def save(self, folder: str | Path) -> None:
        """Write model and tokenizer as transformers does, so that it loads them."""
        self.module.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def lm_head(self, source: str | None = None) -> Head:
        """The head of the model itself or of its own checkpoint, or of the checkpoint that is named."""
        if source not in self._heads:
            self._heads[source] = find_head(self.module, self.tokenizer, source, causal=self.causal)
        return self._heads[source]

    @contextmanager
    def replay(self, batch: Batch) -> Generator[list[Block]]:
        """Every block on the inputs it has in a pass over the batch, to be run alone with its attention edited."""
        with frozen(self.module), torch.no_grad(), self._watched(Watch(lambda _, a: a)) as options:
            with block_calls(self.module) as calls:
                self._run(batch, options)
            if len(calls) != self.layers:
                raise UnsupportedModel(f"{self.name}: {len(calls)} of {self.layers} layers could be run alone")
            yield [partial(self._again, call) for call in calls]

    def _again(self, call: Call, edit: Edit) -> Tensor:
        watch = Watch(edit)
        output = call.block(*call.args, **{**call.kwargs, "salience": watch})
        if watch.calls != 1:
            raise UnsupportedModel(f"the attention of a block of {self.name} was reached {watch.calls} times, not once")
        return output[0] if isinstance(output, tuple) else output

    @contextmanager
    def _watched(self, watch: Watch) -> Generator[dict[str, Any]]:
        with ExitStack() as stack:
            if follows_interface(self.module):
                stack.enter_context(written_out(self.module))
                yield {"salience": watch}
            elif watch.edit is not None:
                raise UnsupportedModel(
                    f"the attention of {type(self.module).__name__} cannot be edited: its code does not go through "
                    "transformers' AttentionInterface, so an edit would have no effect. Methods that only read "
                    "attention do work."
                )
            else:
                stack.enter_context(no_hooks_left(self.module))
                yield {"output_attentions": True}

    def _weights(self, watch: Watch, found: Any) -> tuple[Tensor, ...]:
        """The weights that were asked for; an edit or a reading that did not reach every layer is an error."""
        if watch.wanted is None and watch.edit is None:
            return ()
        if watch.calls == self.layers:
            return tuple(watch.weights)
        given = tuple(getattr(found, "attentions", None) or ())
        if watch.edit is None and len(given) == self.layers and all(w is not None for w in given):
            return given
        raise UnsupportedModel(
            f"only {watch.calls} of {self.layers} attention layers of {self.name} could be reached; "
            "scores made from them would be wrong"
        )

    # What no configuration tells is found out by trying, once, on a few tokens.

    def _trial(self) -> Batch:
        """Two texts, of five tokens and of three."""
        tokens = [i for i in range(6) if i != self._pad][:5]
        ids = torch.tensor([tokens, tokens[::-1]], device=self.device) % self._config.vocab_size
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[1, 3:] = False
        return Batch(ids, mask, ~mask)

    def _agree(self, a: Tensor, b: Tensor) -> bool:
        tolerance = max(1e-4, 20 * torch.finfo(a.dtype).eps)
        return bool((a - b).abs().max() <= tolerance * b.abs().max())

    @cached_property
    def _causal(self) -> bool:
        """A later token changes nothing."""
        batch = self._trial().take(slice(1))
        other = batch.map(Tensor.clone)
        other.ids[:, -1] = batch.ids[:, 0]
        with frozen(self.module), torch.no_grad():
            states = [self._states(b)[-1][:, :-1] for b in (batch, other)]
        return torch.equal(*states)

    def _states(self, batch: Batch) -> list[Tensor]:
        with hidden_states(self.module, None) as seen:
            self._run(batch, {})
        return seen

    @cached_property
    def _minds_the_mask(self) -> bool:
        """A padded text gets the logits it gets alone."""
        batch = self._trial()
        with frozen(self.module), torch.no_grad():
            padded, alone = (
                self._logits(self._run(b, {}).logits, b) for b in (batch, batch.take(slice(1, 2)).cut(slice(3)))
            )
        return self._agree(padded[1:], alone)

    @cached_property
    def _shows_hidden(self) -> bool:
        """The states that leave the blocks are those that the model itself calls hidden states."""
        with frozen(self.module), torch.no_grad(), no_hooks_left(self.module), hidden_states(self.module, None) as seen:
            found = self._run(self._trial(), {"output_hidden_states": True}).hidden_states
        # The last of theirs may have gone through a final norm.
        pairs = zip(seen[1:-1], (found or seen)[1:-1], strict=True)
        return len(seen) == self.layers + 1 and all(self._agree(a, b) for a, b in pairs)

    @cached_property
    def _same_with_attention(self) -> bool:
        """Asking for the weights changes no logit."""
        batch = self._trial()
        with frozen(self.module), torch.no_grad(), no_hooks_left(self.module):
            plain, asked = (self._run(batch, o).logits for o in ({}, {"output_attentions": True}))
        return self._agree(plain, asked)

    @cached_property
    def _reads(self) -> str:
        """Which positions of the last layer the logits depend on: the first, the last, or several."""
        batch = self._trial().take(slice(1))
        with frozen(self.module), torch.enable_grad():
            e = self.embed(batch).requires_grad_()
            with replaced_embeddings(self.module, e), hidden_states(self.module, None) as seen:
                logits = self._logits(self._run(batch, {}).logits, batch)
            (slope,) = torch.autograd.grad(logits.square().sum(), seen[-1])
        felt = slope[0].abs().amax(-1).nonzero()[:, 0].tolist()
        return {(0,): "first", (batch.width - 1,): "last"}.get(tuple(felt), "mean")

    def shares_prefix(self, batch: Batch) -> bool:
        """Whether a changed ending can be read alone: for decoders that keep all keys and values.

        A classifier that takes the last token other than padding would look for it in the ending alone, so no token
        of the text may be the padding token.
        """
        return self._resumes and not bool(((batch.ids == self._pad) & batch.mask).any())

    @cached_property
    def _resumes(self) -> bool:
        """Found out by trying: two texts of different length, whole and from their second or third token on."""
        takes = {"past_key_values", "position_ids"} <= self._parameters
        if not (takes and self.causal and keeps_everything(self._config)):
            return False
        batch, texts = self._trial(), torch.tensor([1, 0, 1], device=self.device)
        with frozen(self.module), torch.no_grad():
            whole = self(batch).logits[texts]
            rest, starts = batch.take(texts), torch.tensor([1, 2, 1], device=self.device)
            rest = rest.map(lambda tensor: torch.stack([row[s : s + 3] for row, s in zip(tensor, starts, strict=True)]))
            parts = self.resume(self.prefix(batch), texts, starts, rest).logits
        return self._agree(parts, whole)

    def prefix(self, batch: Batch) -> Prefix:
        """A pass that keeps every layer's keys and values."""
        cache = DynamicCache(config=self._config)
        found = self._run(batch, {"past_key_values": cache, "use_cache": True})
        return kept(cache, self._logits(found.logits, batch))

    def resume(
        self,
        prefix: Prefix,
        texts: Int[Tensor, " r"],
        starts: Int[Tensor, " r"],
        rest: Batch,
        embeddings: Float[Tensor, "r t d"] | None = None,
    ) -> Output:
        """``rest`` read after the first ``starts`` tokens of ``texts``; positions count on from there."""
        positions = starts[:, None] + torch.arange(rest.width, device=self.device)
        options = {
            "past_key_values": resumed(prefix, texts, starts),
            "attention_mask": seen(starts, rest.mask),
            "position_ids": positions.clamp(max=prefix.keys[0].shape[2] - 1),  # padding has no position of its own
            "use_cache": True,
        }
        e = self.words(rest.ids) if embeddings is None else embeddings
        with replaced_embeddings(self.module, e):
            found = self._run(rest, options)
        return Output(self._logits(found.logits, rest), e)

    def _run(self, batch: Batch, options: Mapping[str, Any], call: Callable[..., Any] | None = None) -> Any:
        with self._padding(batch) as ids:
            return (call or self.module)(
                input_ids=ids,
                **{"attention_mask": batch.mask.long(), **self._extras(batch), **options},
            )

    def _extras(self, batch: Batch) -> dict[str, Any]:
        takes = self._parameters
        extras: dict[str, Any] = {}
        if batch.segments is not None:
            extras["token_type_ids"] = batch.segments
        if "use_cache" in takes:
            extras["use_cache"] = False
        if self.generates and "logits_to_keep" in takes:
            extras["logits_to_keep"] = self._ends(batch).unique()
        return extras

    @cached_property
    def _parameters(self) -> frozenset[str]:
        return frozenset(signature(self.module.forward).parameters)

    @contextmanager
    def _padding(self, batch: Batch) -> Generator[Tensor]:
        """Ids padded as the model expects. A decoder without a padding token is lent an id that no row contains."""
        if self._pad is not None or bool(batch.mask.all() and len(batch) == 1):
            yield batch.ids.masked_fill(~batch.mask, self._pad or 0)
            return
        used = set(batch.ids[batch.mask].tolist())
        free = next(i for i in range(self.words.num_embeddings) if i not in used)
        try:
            self._config.pad_token_id = free
            yield batch.ids.masked_fill(~batch.mask, free)
        finally:
            self._config.pad_token_id = None

    def _ends(self, batch: Batch) -> Tensor:
        return batch.mask.sum(1) - 1

    def _logits(self, logits: Tensor, batch: Batch) -> Tensor:
        """One row of logits per text; for a language model those that follow its last token."""
        if not self.generates:
            return logits
        ends = self._ends(batch)
        if "logits_to_keep" in self._parameters:
            ends = torch.searchsorted(ends.unique(), ends)
        return logits[torch.arange(len(batch), device=ends.device), ends]


ROOM = 10**6
"""Tokens that are taken to fit where neither the tokenizer nor the model names a limit."""


def positions(module: PreTrainedModel) -> int:
    """How many tokens the position embeddings can hold."""
    limits = [
        # RoBERTa numbers positions from padding_idx + 1.
        part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding) and name.rpartition(".")[2] in {"position_embeddings", "wpe"}
    ]
    named = getattr(module.config.get_text_config(), "max_position_embeddings", None)
    return int(min(n for n in (*(limits or [named or ROOM]), ROOM) if n > 0))
