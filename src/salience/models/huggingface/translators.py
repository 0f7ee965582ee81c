"""New encoder-decoders of the shape of Marian's translators, with a tokenizer of their own."""

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from salience.errors import BadInput
from salience.models.huggingface.encoder_decoder import EncoderDecoder
from salience.models.seq2seq import EOS, PAD, UNK


@dataclass(frozen=True, slots=True)
class MarianShape:
    """The size of a translator; encoder and decoder are alike."""

    width: int = 128
    layers: int = 2
    heads: int = 4
    inner: int = 256
    """Units of the feed-forward layers."""
    longest: int = 256
    """Tokens of a source or an answer."""
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise BadInput(f"width={self.width} cannot be divided among {self.heads} heads")


def new_translator(tokenizer: Tokenizer, shape: MarianShape, *, seed: int = 0, name: str = "marian") -> EncoderDecoder:
    """Create an untrained Marian model, which reads and writes the tokens of one vocabulary of both languages."""
    own = _ending_in_eos(tokenizer)
    pad, end = (int(tokenizer.token_to_id(token) or 0) for token in (PAD, EOS))
    sides: dict[str, Any] = {
        f"{side}_{what}": value
        for side in ("encoder", "decoder")
        for what, value in (("layers", shape.layers), ("attention_heads", shape.heads), ("ffn_dim", shape.inner))
    }
    config = MarianConfig(
        vocab_size=len(own),
        d_model=shape.width,
        max_position_embeddings=shape.longest,
        dropout=shape.dropout,
        pad_token_id=pad,
        eos_token_id=end,
        decoder_start_token_id=pad,
        forced_eos_token_id=None,
        scale_embedding=True,
        **sides,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EncoderDecoder(MarianMTModel(config).eval(), own, name)


def _ending_in_eos(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer in the form of transformers; every text ends with a token for its end."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, copy.token_to_id(EOS))])
    return PreTrainedTokenizerFast(tokenizer_object=copy, pad_token=PAD, unk_token=UNK, eos_token=EOS)
