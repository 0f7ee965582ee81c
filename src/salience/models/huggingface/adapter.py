"""The adapter for Hugging Face classifiers and causal language models."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from salience.core.executor import Executor, free_memory
from salience.core.passes import embedded, exclusive
from salience.core.prompts import Prompt
from salience.core.text import Encoded, Text
from salience.core.types import (
    Batch,
    Block,
    Chain,
    Edit,
    EmbeddingEdit,
    Link,
    Output,
    Prefix,
    Reads,
    Reduction,
    Start,
    Weights,
)
from salience.errors import BadInput, UnsupportedModel
from salience.models.huggingface.answering import Answer, log_probabilities
from salience.models.huggingface.attention import Given, Watch, calls_sdpa, eager_attention, follows_interface
from salience.models.huggingface.generating import Generation, generate
from salience.models.huggingface.head import Head, load_head
from salience.models.huggingface.hooks import (
    Call,
    block_calls,
    hidden_states,
    no_hooks_left,
    replaced_embeddings,
)
from salience.models.huggingface.network import Network, agree
from salience.models.huggingface.predictions import Classes, NextToken
from salience.models.huggingface.prefix import prefix_of
from salience.models.huggingface.prompts import begun_once, encode_answer, encode_prompt, spelled
from salience.models.huggingface.query import LastQuery
from salience.models.huggingface.tokens import check_ids, check_offsets, check_room, encode, longest, replacements


@dataclass(eq=False)
class HuggingFace:
    """A sequence classifier or a causal language model, with its tokenizer. The module is never changed."""

    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    call: Callable[..., Any] | None = None
    """Called instead of the module: a wrapper around it, such as those for training on several devices."""
    answer: Answer | None = None
    """The answer that the model is made to give; its tokens are then the labels."""
    embedding_edit: EmbeddingEdit | None = None
    network: Network = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType]
    """Created for the module if not given; shared by all adapters of one module."""
    heads: dict[str | None, Head] = field(default_factory=dict[str | None, Head], repr=False)
    """The language model heads loaded so far, by source."""

    single_query = False

    def __post_init__(self) -> None:
        if self.module.config.is_encoder_decoder:
            raise UnsupportedModel(
                f"{type(self.module).__name__} is an encoder-decoder, of which only the answers are supported "
                "(AutoModelForSeq2SeqLM); for a prediction, use an encoder-only or decoder-only model"
            )
        if chunk := getattr(self.module.config.get_text_config(), "chunk_size_feed_forward", 0):
            raise UnsupportedModel(
                f"{self.name} computes its feed-forward layers in chunks of {chunk} tokens, which fails for most "
                "lengths of texts; set chunk_size_feed_forward to 0 in its config, which changes no output"
            )
        self.network = self.network or Network(self.module)

    @property
    def executor(self) -> Executor:
        return self.network.executor

    @property
    def generates(self) -> bool:
        """Whether the model predicts the next token, so that its labels are the vocabulary."""
        return self.network.generates

    @cached_property
    def predicts(self) -> Classes | NextToken | Answer:
        """What the numbers of an output stand for."""
        if self.answer is not None:
            return self.answer
        if self.generates:
            return NextToken(self.tokenizer, self.network.config.vocab_size, self.name)
        return Classes(self.module.config, self.name)

    @property
    def labels(self) -> Sequence[str]:
        return self.predicts.labels

    @property
    def link(self) -> Link:
        return self.predicts.link

    def resolve(self, label: str | int) -> int:
        return self.predicts.resolve(label)

    def label(self, index: int) -> str:
        return self.predicts.label(index)

    @property
    def layers(self) -> int:
        return self.network.layers

    @property
    def causal(self) -> bool:
        return self.network.causal

    @property
    def reads(self) -> Reads:
        return self.network.reads if self.answer is None else "all"

    @property
    def replacements(self) -> Mapping[str, int]:
        return replacements(self.tokenizer, self.words.num_embeddings)

    @property
    def words(self) -> nn.Embedding:
        """The word embedding layer, or its replacement."""
        if self.embedding_edit is not None:
            return self.embedding_edit.words
        layer = self.module.get_input_embeddings()
        if not isinstance(layer, nn.Embedding):
            raise UnsupportedModel(f"{self.name} has no word embedding layer, so its tokens cannot be scored")
        return layer

    def with_embeddings(self, edit: EmbeddingEdit) -> "HuggingFace":
        return replace(self, embedding_edit=edit)

    @property
    def device(self) -> torch.device:
        return self.words.weight.device

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        if self.generates and (pairs := [i for i, text in enumerate(texts) if not isinstance(text, str)]):
            raise BadInput(
                f"text {pairs[0]} is a pair, and {self.name} continues one text; join the two as the model expects them"
            )
        # The next token follows the end of a text.
        side = "left" if self.generates else None
        encoded = encode(self.tokenizer, texts, self.window, segments=self._has_segments, cut=side)
        if self.generates:
            encoded = [begun_once(e, self.tokenizer) for e in encoded]
        for e in encoded:
            self._check_ids(e)
        return encoded

    def encode_prompt(self, prompt: Prompt) -> Encoded:
        """Return a prompt as the model will read it, or refuse it if it is longer than the context window."""
        self._check_generates()
        check_offsets(self.tokenizer)
        encoded = encode_prompt(self.tokenizer, prompt, self.name)
        self._check_ids(encoded)
        self._check_room(len(encoded), "the prompt")
        return encoded

    def encode_answer(self, prompt: Encoded, answer: str | Sequence[int]) -> Encoded:
        """Return the tokens of a given answer to a prompt, with offsets into the answer's own text."""
        self._check_generates()
        if isinstance(answer, str):
            encoded = encode_answer(self.tokenizer, prompt, answer, self.name)
        else:
            encoded = spelled(self.tokenizer, [*Prompt.of(answer).ids], prompt.ids)
        self._check_ids(encoded)
        self._check_room(len(prompt) + len(encoded), "the prompt with the answer")
        return encoded

    def generate(self, prompts: Sequence[Encoded], *, max_new_tokens: int, **settings: Any) -> list[Encoded]:
        """Return the model's own answer to each prompt: the most likely tokens one after the other by default.

        Other ``settings`` are those of transformers' ``generate``, and ``seed`` for sampling. A token that ends an
        answer is kept, since the model chose it like every other, but it is special and has no text.
        """
        self._check_generates()
        how = Generation.of(self.module, max_new_tokens, settings)
        for prompt in prompts:
            self._check_room(len(prompt) + max_new_tokens, "the prompt with max_new_tokens")
        return generate(self.network, self.tokenizer, prompts, how)

    def generation_settings(self, *, max_new_tokens: int, **settings: Any) -> dict[str, object]:
        """Return all settings that answers are generated with: the given ones, and those of the model itself."""
        self._check_generates()
        return Generation.of(self.module, max_new_tokens, settings).recorded

    def _check_generates(self) -> None:
        if not self.generates:
            raise UnsupportedModel(f"{self.name} does not generate text; use a causal language model")

    def _check_room(self, tokens: int, what: str) -> None:
        check_room(tokens, self.window, what, self.name)

    @property
    def window(self) -> int:
        """The most tokens that the model can read at once."""
        return min(self.network.positions, longest(self.tokenizer, self.name) or self.network.positions)

    def _check_ids(self, encoded: Encoded) -> None:
        check_ids(encoded, self.words.num_embeddings, self.name)

    @property
    def _has_segments(self) -> bool:
        """Whether the model has token type embeddings; GPT-2 would look them up among its words."""
        return "token_type_ids" in self.network.parameters and bool(getattr(self.network.config, "type_vocab_size", 0))

    def batch(self, encoded: Sequence[Encoded]) -> Batch:
        if len({len(e) for e in encoded}) > 1 and not self.network.respects_the_mask:
            raise UnsupportedModel(
                f"{self.name} reads padding as if it were text, so texts of different lengths cannot share a batch. "
                "Explain them one by one."
            )
        return Batch.of(encoded, self.network.pad or 0, self.device)

    def spell(self, ids: Sequence[int]) -> list[str]:
        return [str(self.tokenizer.decode([i], skip_special_tokens=True)) for i in ids]

    def embed(self, batch: Batch) -> Float[Tensor, "b t d"]:
        return embedded(self, batch)

    def read_from(self, batch: Batch) -> Float[Tensor, "b t"]:
        if self.answer is not None:
            return self.answer.read_from(batch)
        if self.reads == "all":
            return batch.mask / batch.mask.sum(1, keepdim=True)
        kept, pad = batch.mask, self.network.pad
        if self.reads == "last" and not self.generates and pad is not None:
            kept = batch.mask & (
                batch.ids != pad
            )  # decoders skip all padding tokens at the end, even those of the text
        order = torch.arange(batch.width, device=self.device)
        at = (kept * order).argmax(1) if self.reads == "last" else torch.zeros_like(batch.ids[:, 0])
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
        start: Start | None = None,
    ) -> Output:
        if attention == "followed":
            attention = None if calls_sdpa(self.module) else "written_out"
        self._check_states(hidden or edit_hidden is not None, attention is not None)
        e = self.words(batch.ids) if embeddings is None else embeddings
        if e.requires_grad and self.network.quantized is not None:
            raise UnsupportedModel(
                f"{self.name} has quantized layers ({self.network.quantized}), through which torch computes no "
                "gradients. Load it unquantized, or use a method without gradients, such as occlusion."
            )
        watch = Watch(edit_attention, attention, calls=0 if start is None else start.layer)
        with ExitStack() as stack:
            stack.enter_context(self._entering(e))
            states: list[Tensor] = []
            if hidden or edit_hidden is not None:
                states = stack.enter_context(hidden_states(self.module, edit_hidden))
            options: dict[str, Any] = {}
            if attention is not None or edit_attention is not None:
                options = stack.enter_context(self._watched(watch))
            output = self.network(batch, options, self.call, start, self.tail)
        weights = self._weights(watch, output)
        if states and len(states) != self.layers + 1:
            raise UnsupportedModel(f"{self.name}: only {len(states) - 1} of {self.layers} layers can be read")
        numbers, relevance = self._read(output.logits, batch), self._relevance(output.logits, batch)
        return Output(numbers, e, tuple(states if hidden else ()), weights, relevance=relevance)

    def _read(self, logits: Tensor, batch: Batch) -> Float[Tensor, "b c"]:
        """The logits, or the explained numbers of the answer."""
        if self.answer is None:
            return self.network.logits(logits, batch)
        return self.answer(self.network.last_logits(logits, batch, self.tail))

    def _relevance(self, logits: Tensor, batch: Batch) -> Float[Tensor, "b c"] | None:
        """With what relevance propagation starts, where the numbers of an answer are explained."""
        if self.answer is None:
            return None
        return self.answer.relevance(self.network.last_logits(logits, batch, self.tail))

    def answering(self, answer: Answer) -> "HuggingFace":
        """Return the model as one that gives this answer, whose tokens are its labels."""
        return replace(self, answer=answer)

    def distributions(self, batch: Batch, steps: int) -> Float[Tensor, "b g v"]:
        """The log-probabilities of the token that follows each of the last tokens of every text."""
        with exclusive(self), torch.no_grad(), self._entering(self.words(batch.ids)):
            logits = self.network(batch, {}, self.call, tail=steps).logits
            return log_probabilities(self.network.last_logits(logits, batch, steps))

    def _entering(self, embeddings: Float[Tensor, "b t d"]) -> AbstractContextManager[None]:
        """Make the module use these embeddings instead of its own."""
        edit = self.embedding_edit
        return replaced_embeddings(self.module, embeddings if edit is None else edit.entering(embeddings))

    def _check_states(self, hidden: bool, attention: bool) -> None:
        """Raise unless the states returned are the ones that the prediction is computed from."""
        kind = type(self.module).__name__
        if hidden and not self.network.shows_hidden:
            raise UnsupportedModel(f"the hidden states of {kind} cannot be identified, so its layers are not supported")
        if attention and not follows_interface(self.module) and not self.network.same_with_attention:
            raise UnsupportedModel(
                f"{kind} computes something else when its attention weights are requested, so they would not be "
                "those of its prediction"
            )

    def save(self, folder: str | Path) -> None:
        """Save model and tokenizer in the format of transformers."""
        self.module.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def lm_head(self, source: str | None = None) -> Head:
        """Return the head of the model itself or its own checkpoint, or of the checkpoint ``source``."""
        with self.executor.lock:  # a head is found by a trial pass
            if source not in self.heads:
                self.heads[source] = load_head(self.module, self.tokenizer, source, causal=self.causal)
            return self.heads[source]

    @contextmanager
    def replay(self, batch: Batch) -> Generator[list[Block]]:
        """Run the batch once, and yield every block as a function that runs it again with edited attention."""
        with exclusive(self), torch.no_grad(), self._watched(Watch(lambda _, a: a)) as options:
            with block_calls(self.module) as calls, self._entering(self.words(batch.ids)):
                self.network(batch, options)
            self._check_calls(calls)
            yield [partial(self._rerun, call) for call in calls]

    def _check_calls(self, calls: Sequence[Call]) -> None:
        if len(calls) != self.layers:
            raise UnsupportedModel(f"{self.name}: only {len(calls)} of {self.layers} layers can be run individually")

    def _rerun(self, call: Call, edit: Edit) -> Tensor:
        watch = Watch(edit)
        output = call(salience=watch)
        if watch.calls != 1:
            raise UnsupportedModel(
                f"the attention of a block of {self.name} was called {watch.calls} times instead of once"
            )
        return output

    @contextmanager
    def _watched(self, watch: Watch) -> Generator[dict[str, Any]]:
        with ExitStack() as stack:
            if follows_interface(self.module):
                stack.enter_context(eager_attention(self.module))
                yield {"salience": watch}
            elif watch.edit is not None:
                raise UnsupportedModel(
                    f"the attention of {type(self.module).__name__} cannot be edited: it does not use transformers' "
                    "AttentionInterface, so an edit would have no effect. Methods that only read attention are "
                    "supported."
                )
            else:
                stack.enter_context(no_hooks_left(self.module))
                yield {"output_attentions": True}

    def _weights(self, watch: Watch, output: Any) -> tuple[Tensor, ...]:
        """Return the requested weights, or raise if some layers were not reached."""
        if watch.wanted is None and watch.edit is None:
            return ()
        if watch.calls == self.layers:
            return tuple(watch.weights)
        attentions = tuple(getattr(output, "attentions", None) or ())
        if watch.edit is None and len(attentions) == self.layers and all(w is not None for w in attentions):
            return tuple(kept for n, w in enumerate(attentions, 1) for kept in watch.kept(n, w))
        raise UnsupportedModel(
            f"only {watch.calls} of {self.layers} attention layers of {self.name} can be read or edited, so scores "
            "would be wrong"
        )

    def reduce_attention(self, batch: Batch, reduction: Reduction) -> Output:
        """Run the batch, and keep only what the reduction makes of each layer's weights."""
        self._check_states(hidden=False, attention=True)
        watch, e = Watch(wanted="read", reduction=reduction), self.words(batch.ids)
        with self._entering(e), self._watched(watch) as options:
            output = self.network(batch, options, self.call, tail=self.tail)
        return Output(self._read(output.logits, batch), e, (), self._weights(watch, output))

    def too_long(self, batch: Batch) -> bool:
        """Whether the graph of these texts would take more than half of the free memory."""
        needed = batch.ids.numel() * self.network.bytes_per_token
        return needed > free_memory(self.device) // 2 and calls_sdpa(self.module) and self.can_start()

    def chain(self, batch: Batch, embeddings: Float[Tensor, "b t d"]) -> Chain:
        """Run the batch without a graph, and keep the input of every block."""
        calls, states = block_calls(self.module), hidden_states(self.module, None)
        with torch.no_grad(), calls as called, states as reached, self._entering(embeddings):
            self.network(batch, {}, self.call, tail=self.tail)
        self._check_calls(called)
        last = reached[-1].detach().requires_grad_()
        output = self(batch, embeddings=embeddings, hidden=True, start=Start(self.layers, last))
        blocks = tuple(call.on for call in called)
        return Chain(output.hidden[0], blocks, tuple(reached[:-1]), last, replace(output, hidden=()))

    def can_start(self) -> bool:
        """Whether the layers above given states can run alone."""
        return self.network.can_start

    def last_attention(self, batch: Batch, start: Start) -> LastQuery | None:
        """The one query of the last layer that is read, with the value vectors of all tokens."""
        return self._last_attention(batch, start) if self._reads_one_query else None

    def _last_attention(self, batch: Batch, start: Start) -> LastQuery:
        watch = Watch(wanted="read", calls=start.layer)
        with exclusive(self), torch.no_grad(), self._entering(self.words(batch.ids)), self._watched(watch) as options:
            self.network(batch, options, self.call, start)
        assert watch.value is not None
        rows, at = torch.arange(len(batch), device=self.device), self.read_from(batch).argmax(1)
        one = batch.map(lambda tensor: tensor[rows, at][:, None])
        return LastQuery(self._from_weights, one, Start(start.layer, start.hidden[rows, at][:, None]), watch.value)

    def _from_weights(self, one: Batch, start: Start, given: Given) -> Float[Tensor, "b c"]:
        with eager_attention(self.module):
            output = self.network(one, {"salience": given}, self.call, start)
        return self.network.logits(output.logits, one)

    @cached_property
    def _reads_one_query(self) -> bool:
        """Tested on two texts of different lengths."""
        if self.reads == "all" or self.layers < 2 or not self.can_start():
            return False
        batch = self.network.trial()
        with exclusive(self), torch.no_grad():
            whole = self(batch, hidden=True, attention="read")
            last = self._last_attention(batch, Start(self.layers - 1, whole.hidden[-2]))
            rows, at = torch.arange(len(batch), device=self.device), self.read_from(batch).argmax(1)
            parts = last(whole.attention[-1][rows, :, at][:, :, None])
        return agree(parts, whole.logits, whole.logits[0] - whole.logits[1], self.module.dtype)

    def shares_prefix(self, batch: Batch) -> bool:
        """Whether a changed ending can be run alone, as for decoders that cache all keys and values.

        A classifier that pools the last non-padding token would look for it in the ending only, so no token of the
        text may be the padding token.
        """
        return self.network.can_resume and not bool(((batch.ids == self.network.pad) & batch.mask).any())

    @property
    def tail(self) -> int:
        return 1 if self.answer is None else len(self.answer)

    def can_read(self, batch: Batch, kept: Bool[Tensor, "b t"]) -> Bool[Tensor, " b"]:
        """Whether there is a token before each one that is predicted."""
        return (batch.mask & kept).sum(1) >= self.tail

    def prefix(self, batch: Batch) -> Prefix:
        """Run a pass that caches every layer's keys and values."""
        with self._entering(self.words(batch.ids)):
            logits, cache = self.network.prefix(batch, self.tail)
        return prefix_of(cache, self._read(logits, batch))

    def resume(
        self,
        prefix: Prefix,
        texts: Int[Tensor, " r"],
        starts: Int[Tensor, " r"],
        rest: Batch,
        embeddings: Float[Tensor, "r t d"] | None = None,
    ) -> Output:
        """Run ``rest`` after the first ``starts`` tokens of ``texts``, with positions that continue from there."""
        e = self.words(rest.ids) if embeddings is None else embeddings
        with self._entering(e):
            logits = self.network.resume(prefix, texts, starts, rest, self.tail)
        return Output(self._read(logits, rest), e)
