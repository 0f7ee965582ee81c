"""The adapter for Hugging Face encoder-decoders, such as T5, BART and Marian, that answer a text with another.

A row of a batch is the source, followed by the tokens that the decoder starts with and the answer so far. The segments
of the batch tell the two sides apart, so that a method changes tokens of either in the same way.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from salience.core.executor import Executor
from salience.core.passes import embedded, exclusive
from salience.core.prompts import Prompt
from salience.core.text import Encoded, Text
from salience.core.types import Batch, Edit, EmbeddingEdit, LanguageHead, Link, Output, Reads, Start, Weights
from salience.errors import BadInput, BadModel, UnsupportedModel
from salience.models.huggingface.answering import Answer, log_probabilities
from salience.models.huggingface.attention import calls_sdpa, eager_attention, follows_interface
from salience.models.huggingface.generating import Generation, generate_from_sources
from salience.models.huggingface.hooks import blocks, no_hooks_left, replaced_embeddings
from salience.models.huggingface.network import Network
from salience.models.huggingface.pieces import has_offsets
from salience.models.huggingface.prompts import encode_prompt, encode_separate_answer, spelled
from salience.models.huggingface.tokens import check_ids, check_offsets, check_room, longest, replacements

SOURCE, DECODER = 0, 1
"""The segments of the tokens that the encoder and the decoder read."""

STARTS = ("decoder_start_token_id", "forced_bos_token_id")
"""What the decoder starts with. It is given and not said, so it is no part of the answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The tokens of one side of every row, from the left."""

    at: Int[Tensor, "b k"]
    """Their positions in the row; those of padding have no meaning."""
    mask: Bool[Tensor, "b k"]

    @classmethod
    def of(cls, batch: Batch, segment: int) -> "Side":
        assert batch.segments is not None
        own = batch.mask & (batch.segments == segment)
        order = (~own).to(torch.int8).sort(dim=1, stable=True).indices[:, : int(own.sum(1).max())]
        return cls(order, own.gather(1, order))

    def __call__(self, x: Tensor) -> Tensor:
        """Select the values of these tokens from those of the rows."""
        return x[torch.arange(len(x), device=x.device)[:, None], self.at]

    def places(self, width: int) -> Float[Tensor, "b k t"]:
        """The matrix that puts values of these tokens at their positions."""
        return nn.functional.one_hot(self.at, width) * self.mask[..., None].float()


@dataclass(eq=False)
class EncoderDecoder:
    """An encoder-decoder with its tokenizer. The module is never changed.

    With an ``answer``, it is a model whose labels are the tokens of that answer; without one, it only generates. Its
    layers are those of the encoder, then those of the decoder.
    """

    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    answer: Answer | None = None
    embedding_edit: EmbeddingEdit | None = None
    network: Network = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType]
    """Created for the module if not given; shared by all adapters of one module."""

    single_query = False
    causal = False
    generates = True

    def __post_init__(self) -> None:
        if not self.module.can_generate():
            raise UnsupportedModel(
                f"{type(self.module).__name__} is an encoder-decoder that does not generate text, which is not "
                "supported; use an encoder-only or decoder-only model"
            )
        first, second = (layer.weight for layer in self._layers)
        if first is not second and first.data_ptr() != second.data_ptr():
            raise UnsupportedModel(
                f"{self.name} reads the source and its answer by different word embeddings, which is not supported; "
                "use a model that shares them (tie_word_embeddings, share_encoder_decoder_embeddings)"
            )
        self.network = self.network or Network(self.module)

    @property
    def _layers(self) -> tuple[nn.Embedding, nn.Embedding]:
        """The word embedding layers of the encoder and of the decoder; one layer may be both."""
        layers = [part.get_input_embeddings() for part in self._parts]
        if all(isinstance(layer, nn.Embedding) for layer in layers):
            return layers[0], layers[1]  # pyright: ignore[reportReturnType]
        raise UnsupportedModel(f"{self.name} has no word embedding layer, so its tokens cannot be scored")

    @property
    def _parts(self) -> tuple[PreTrainedModel, PreTrainedModel]:
        return self.module.get_encoder(), self.module.get_decoder()  # pyright: ignore

    # ------------------------------------------------------------------------------------------------ prompts, answers

    @property
    def start(self) -> tuple[int, ...]:
        """The tokens that the decoder starts with: its first token and, for some models, that of the language."""
        named = [getattr(self.module.generation_config, key, None) for key in STARTS]
        if not isinstance(named[0], int):
            raise BadModel(
                f"{self.name} has no token that its answers start with; set "
                f"model.generation_config.{STARTS[0]} to its id"
            )
        return tuple(token for token in named if isinstance(token, int))

    def encode_prompt(self, prompt: Prompt) -> Encoded:
        """Return a source as the model will read it, followed by what its decoder starts with."""
        if not has_offsets(self.tokenizer):
            check_offsets(self.tokenizer)
        source = encode_prompt(self.tokenizer, prompt, self.name)
        check_ids(source, self.words.num_embeddings, self.name)
        check_room(len(source), self.window, "the prompt", self.name)
        count = len(start := self.start)
        return replace(
            source,
            ids=source.ids + start,
            tokens=(*source.tokens, *self.tokenizer.convert_ids_to_tokens(list(start))),
            offsets=source.offsets + ((0, 0),) * count,
            special=source.special + (True,) * count,
            segments=(SOURCE,) * len(source) + (DECODER,) * count,
        )

    def encode_answer(self, prompt: Encoded, answer: str | Sequence[int]) -> Encoded:  # noqa: ARG002
        """Return the tokens of a given answer, with offsets into its text. It does not depend on the prompt."""
        if isinstance(answer, str):
            encoded = encode_separate_answer(self.tokenizer, answer, self.name)
        else:
            encoded = spelled(self.tokenizer, [*Prompt.of(answer).ids])
        check_ids(encoded, self.words.num_embeddings, self.name)
        check_room(len(self.start) + len(encoded), self.window, "the answer", self.name)
        return encoded

    def generate(self, prompts: Sequence[Encoded], *, max_new_tokens: int, **settings: Any) -> list[Encoded]:
        """Return the model's own answer to each prompt: the most likely tokens one after the other by default.

        Other ``settings`` are those of transformers' ``generate``, and ``seed`` for sampling. A token that ends an
        answer is kept unless only the limit ended it. It is special and has no text.
        """
        how = self._generation(max_new_tokens, settings)
        check_room(len(self.start) + max_new_tokens, self.window, "an answer of max_new_tokens", self.name)
        return generate_from_sources(self.network, self.tokenizer, prompts, len(self.start), how)

    def generation_settings(self, *, max_new_tokens: int, **settings: Any) -> dict[str, object]:
        """Return all settings that answers are generated with: the given ones, and those of the model itself."""
        return self._generation(max_new_tokens, settings).recorded

    def _generation(self, max_new_tokens: int, settings: Mapping[str, Any]) -> Generation:
        if given := [key for key in STARTS if key in settings]:
            raise BadInput(
                f"{given[0]} also decides how given answers are read; set it in model.generation_config before the "
                "model is explained, not in generation"
            )
        return Generation.of(self.module, max_new_tokens, settings)

    @property
    def window(self) -> int:
        """The most tokens that the encoder or the decoder can read at once."""
        return min(self.network.positions, longest(self.tokenizer, self.name) or self.network.positions)

    def answering(self, answer: Answer) -> "EncoderDecoder":
        """Return the model as one that gives this answer, whose tokens are its labels."""
        return replace(self, answer=answer)

    def distributions(self, batch: Batch, steps: int) -> Float[Tensor, "b g v"]:
        """The log-probabilities of the token that follows each of the last tokens of every answer."""
        with exclusive(self), torch.no_grad():
            output = self._run(batch, self.words(batch.ids), None)
            return log_probabilities(_last(output.logits, batch, steps))

    # ------------------------------------------------------------------------------------------------ what it is

    @property
    def _answer(self) -> Answer:
        if self.answer is None:
            raise BadInput(self._explain_the_answer)
        return self.answer

    @property
    def _explain_the_answer(self) -> str:
        return (
            f"{self.name} is an encoder-decoder and has no prediction but its answer; explain that with --generate or "
            "--answer, or salience.explain_answer in Python"
        )

    @property
    def executor(self) -> Executor:
        return self.network.executor

    @property
    def device(self) -> torch.device:
        return self.words.weight.device

    @property
    def labels(self) -> Sequence[str]:
        """The tokens of the answer and the whole of it; none without an answer."""
        return () if self.answer is None else self.answer.labels

    @property
    def link(self) -> Link:
        return "identity"

    @property
    def reads(self) -> Reads:
        return "all"

    def resolve(self, label: str | int) -> int:
        return self._answer.resolve(label)

    def label(self, index: int) -> str:
        return self.labels[index]

    @property
    def layers(self) -> int:
        return sum(len(blocks(part)) for part in self._parts)

    @property
    def decoder_layers(self) -> int:
        """How many of the layers, the last ones, are those of the decoder."""
        return len(blocks(self._parts[1]))

    def can_start(self) -> bool:
        return False

    @property
    def replacements(self) -> Mapping[str, int]:
        return replacements(self.tokenizer, self.words.num_embeddings)

    @property
    def words(self) -> nn.Embedding:
        """The word embedding layer, or its replacement."""
        return self._layers[0] if self.embedding_edit is None else self.embedding_edit.words

    def with_embeddings(self, edit: EmbeddingEdit) -> "EncoderDecoder":
        return replace(self, embedding_edit=edit)

    def save(self, folder: str | Path) -> None:
        """Save model and tokenizer in the format of transformers."""
        self.module.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def spell(self, ids: Sequence[int]) -> list[str]:
        return [str(self.tokenizer.decode([i], skip_special_tokens=True)) for i in ids]

    def lm_head(self, source: str | None = None) -> LanguageHead:  # noqa: ARG002
        raise UnsupportedModel(self._no_hidden)

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:  # noqa: ARG002
        raise BadInput(self._explain_the_answer)

    def batch(self, encoded: Sequence[Encoded]) -> Batch:
        return Batch.of(encoded, self.network.pad or 0, self.device)

    def embed(self, batch: Batch) -> Float[Tensor, "b t d"]:
        return embedded(self, batch)

    def read_from(self, batch: Batch) -> Float[Tensor, "b t"]:
        return self._answer.read_from(batch)

    def can_read(self, batch: Batch, kept: Bool[Tensor, "b t"]) -> Bool[Tensor, " b"]:
        """Whether something of each source is kept."""
        assert batch.segments is not None
        return (batch.mask & kept & (batch.segments == SOURCE)).any(1)

    # ------------------------------------------------------------------------------------------------ passes

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
        """Run the model, and return the explained numbers of the answer's tokens."""
        answer = self._answer
        if attention == "followed":
            attention = None if calls_sdpa(self.module) else "written_out"
        self._check_requested(
            edits=edit_attention is not None or edit_hidden is not None or start is not None,
            hidden=hidden,
            gradients=attention == "differentiable",
        )
        e = self.words(batch.ids) if embeddings is None else embeddings
        if e.requires_grad and self.network.quantized is not None:
            raise UnsupportedModel(
                f"{self.name} has quantized layers ({self.network.quantized}), through which torch computes no "
                "gradients. Load it unquantized, or use a method without gradients, such as occlusion."
            )
        output = self._run(batch, e, attention)
        weights = self._weights(output, batch) if attention == "read" else ()
        logits = _last(output.logits, batch, len(answer))
        return Output(answer(logits), e, attention=weights, relevance=answer.relevance(logits))

    def _run(self, batch: Batch, e: Float[Tensor, "b t d"], attention: Weights | None) -> Any:
        """Run the module on both sides of every row."""
        source, decoder = Side.of(batch, SOURCE), Side.of(batch, DECODER)
        if not bool(source.mask.any(1).all()):
            raise BadInput("deleting these tokens would leave nothing of the source; erase by replacing them instead")
        with self._entering(source(e), decoder(e)), self._kernel(attention) as options:
            return self.module(
                input_ids=source(batch.ids).masked_fill(~source.mask, self.network.pad or 0),
                attention_mask=source.mask.long(),
                decoder_input_ids=decoder(batch.ids),
                use_cache=False,
                return_dict=True,
                **options,
            )

    def _check_requested(self, *, edits: bool, hidden: bool, gradients: bool) -> None:
        """Raise if something is asked for that an encoder-decoder has not, or that would not be right."""
        what = f"{type(self.module).__name__}, an encoder-decoder,"
        if hidden:
            raise UnsupportedModel(self._no_hidden)
        if gradients:
            raise UnsupportedModel(
                f"the gradients of the attention weights of {what} are not supported; use attention, "
                "attention_rollout, or lrp"
            )
        if edits:
            raise UnsupportedModel(f"the attention and hidden states of {what} cannot be edited")

    @property
    def _no_hidden(self) -> str:
        return (
            f"a layer of {type(self.module).__name__}, an encoder-decoder, holds states of the source or of the "
            "answer, never of both, so its hidden states are not supported; use input_x_gradient, "
            "integrated_gradients or lrp"
        )

    @contextmanager
    def _entering(self, source: Float[Tensor, "b s d"], decoder: Float[Tensor, "b g d"]) -> Generator[None]:
        """Make the module use these embeddings instead of its own."""
        edit = self.embedding_edit
        source, decoder = (e if edit is None else edit.entering(e) for e in (source, decoder))
        first, second = self._layers
        with ExitStack() as stack:
            if first is second:
                stack.enter_context(replaced_embeddings(self.module, source, decoder, layer=first))
            else:
                stack.enter_context(replaced_embeddings(self.module, source, layer=first))
                stack.enter_context(replaced_embeddings(self.module, decoder, layer=second))
            yield

    @contextmanager
    def _kernel(self, attention: Weights | None) -> Generator[dict[str, Any]]:
        """Compute attention step by step if its weights are needed."""
        with ExitStack() as stack:
            if attention is not None and follows_interface(self.module):
                stack.enter_context(eager_attention(self.module))
            if attention == "read":
                stack.enter_context(no_hooks_left(self.module))
            yield {"output_attentions": True} if attention == "read" else {}

    def _weights(self, output: Any, batch: Batch) -> tuple[Tensor, ...]:
        """The attention of every layer as weights between all tokens of the row.

        In a layer of the encoder, tokens of the source attend to each other, and those of the decoder to themselves. In
        a layer of the decoder, half of a token's attention is its cross-attention to the source and half its
        self-attention to the answer so far; the tokens of the source attend to themselves. All rows sum to 1.
        """
        groups = [tuple(getattr(output, f"{kind}_attentions") or ()) for kind in ("encoder", "decoder", "cross")]
        if any(w is None for group in groups for w in group) or len(groups[0]) + len(groups[1]) != self.layers:
            raise UnsupportedModel(
                f"{type(self.module).__name__} does not return the attention weights of all its layers, so scores "
                "would be wrong; use a gradient method such as input_x_gradient"
            )
        s, d = (Side.of(batch, side).places(batch.width) for side in (SOURCE, DECODER))
        still, said = (torch.diag_embed(places.sum(1))[:, None] for places in (s, d))
        within, own, across = groups
        return (
            *(_placed(s, a, s) + said for a in within),
            *((_placed(d, a, d) + _placed(d, c, s)) / 2 + still for a, c in zip(own, across, strict=True)),
        )


def _last(logits: Float[Tensor, "b g v"], batch: Batch, steps: int) -> Float[Tensor, "b n v"]:
    """The logits after each of the last tokens of the decoder."""
    sizes = Side.of(batch, DECODER).mask.sum(1, keepdim=True)
    at = sizes - torch.arange(steps, 0, -1, device=sizes.device)
    return logits[torch.arange(len(batch), device=at.device)[:, None], at]


def _placed(
    queries: Float[Tensor, "b q t"], weights: Float[Tensor, "b h q k"], keys: Float[Tensor, "b k t"]
) -> Float[Tensor, "b h t t"]:
    """Weights between tokens of two sides, at the positions of these tokens in the row."""
    return queries.to(weights).transpose(1, 2)[:, None] @ weights @ keys.to(weights)[:, None]
