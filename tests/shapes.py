"""Tiny random models of every supported shape, each with a tokenizer of its usual kind. Built in seconds, offline."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AlbertConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BartConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    LlamaConfig,
    MarianConfig,
    MBartConfig,
    ModernBertConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    RobertaConfig,
    T5Config,
    XLMRobertaConfig,
)

import salience
from salience.core.types import Model
from salience.models.huggingface import EncoderDecoder
from salience.models.pooled import Pooled, PooledConfig, word_tokenizer
from salience.models.rationale import Rationale
from salience.models.seq2seq import Seq2Seq, Seq2SeqConfig, subword_tokenizer

TEXTS = (
    "A fine film.",
    "It is a truly, truly awful mess of a movie with no heart and nothing to say.",
    "Good",
    "Not bad at all: the cast is splendid, but the plot drags on.",
)
CORPUS = [*TEXTS, "the quick brown fox jumps over the lazy dog", "éclair naïve 👍 مرحبا 我喜欢"] * 20


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """wordpiece (BERT), bpe (RoBERTa, with special tokens), bare (GPT-2, none at all), unigram (SentencePiece)."""
    return {"wordpiece": _wordpiece, "bpe": _bpe, "bare": _bare, "unigram": _unigram}[kind]()


def _stored(kind: str, learn: Callable[[], Tokenizer]) -> Tokenizer:
    """Training breaks ties by chance. So that all runs of the tests read alike, what was learnt once is kept."""
    file = Path(__file__).parent / "fixtures" / f"{kind}.json"
    if not file.exists():
        learn().save(str(file))
    return Tokenizer.from_file(str(file))


def _learn_wordpiece() -> Tokenizer:
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tok.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=180, special_tokens=special))
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tok


def _wordpiece() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=_stored("wordpiece", _learn_wordpiece),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def _byte_level(special: list[str]) -> Tokenizer:
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    tok.train_from_iterator(CORPUS, trainer)
    return tok


def _learn_bpe() -> Tokenizer:
    tok = _byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tok.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return tok


def _bpe() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=_stored("bpe", _learn_bpe),
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def _learn_bare() -> Tokenizer:
    tok = _byte_level(["<|endoftext|>"])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def _bare() -> PreTrainedTokenizerFast:
    tok = _stored("bare", _learn_bare)
    return PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def _learn_unigram() -> Tokenizer:
    tok = Tokenizer(models.Unigram())
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="[UNK]")
    tok.train_from_iterator(CORPUS, trainer)
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    return tok


def _unigram() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=_stored("unigram", _learn_unigram),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


_SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
_DECODER = {**_SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64}


def _config(shape: str, vocabulary: int) -> object:
    sizes = {**_SIZES, "vocab_size": vocabulary, "max_position_embeddings": 64}
    decoder = {**_DECODER, "vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    return {
        "bert": lambda: BertConfig(**sizes),
        "roberta": lambda: RobertaConfig(**sizes, pad_token_id=1),
        "xlm_roberta": lambda: XLMRobertaConfig(**sizes, pad_token_id=1),
        "distilbert": lambda: DistilBertConfig(
            vocab_size=vocabulary, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=64
        ),
        "albert": lambda: AlbertConfig(**sizes, embedding_size=16, pad_token_id=1, bos_token_id=0, eos_token_id=2),
        "electra": lambda: ElectraConfig(**sizes, embedding_size=16),
        "deberta_v2": lambda: DebertaV2Config(
            **sizes, relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8, pad_token_id=1
        ),
        "modernbert": lambda: ModernBertConfig(
            **sizes, pad_token_id=1, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2,
            global_attn_every_n_layers=2, local_attention=8,
        ),
        "gpt2": lambda: GPT2Config(
            vocab_size=vocabulary, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
        ),
        "llama": lambda: LlamaConfig(**decoder),
        "qwen3": lambda: Qwen3Config(**decoder, head_dim=8),
    }[shape]()  # fmt: skip


_TOKENIZERS = {
    "bert": "wordpiece",
    "distilbert": "wordpiece",
    "electra": "wordpiece",
    "roberta": "bpe",
    "modernbert": "bpe",
    "xlm_roberta": "unigram",
    "albert": "unigram",
    "deberta_v2": "unigram",
    "gpt2": "bare",
    "llama": "bare",
    "qwen3": "bare",
}
CLASSIFIERS = tuple(_TOKENIZERS)
LANGUAGE_MODELS = ("gpt2_lm", "llama_lm", "qwen3_lm")
HEADS = ("bert_multi_label", "bert_regression")
POOLED = ("pooled_bilstm", "pooled_lstm", "pooled_orthogonal_lstm", "pooled_embedding", "pooled_mlp")
SHAPES = (*CLASSIFIERS, *LANGUAGE_MODELS, *HEADS, *POOLED)
RATIONALES = {"rationale_hardkuma": "pooled_bilstm", "rationale_lei": "bert"}
"""Rationale models, by the classifier that they are made of."""
SEQ2SEQ = "seq2seq"
"""The encoder-decoder, whose labels are a vocabulary like those of language models."""


def build(shape: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Model:
    """A fresh model of this shape, in training mode, so that tests notice who forgets to leave it.

    In double precision, what company or a budget changes shows at once, and rounding does not.
    """
    torch.manual_seed(seed)
    if shape in POOLED:
        return _pooled(shape.removeprefix("pooled_"), dtype)
    if shape == SEQ2SEQ:
        return _seq2seq(dtype)
    if shape in RATIONALES:
        kind = shape.removeprefix("rationale_")
        return Rationale.new(build(RATIONALES[shape], seed, dtype), kind, name=f"tiny-{kind}")  # pyright: ignore
    family, _, head = shape.partition("_") if shape not in _TOKENIZERS else (shape, "", "")
    tok = tokenizer(_TOKENIZERS[family])
    config = _config(family, len(tok))
    config.num_labels = 1 if head == "regression" else 3
    config.initializer_range = 0.3  # large enough for nonlinear, clearly different scores
    if head == "multi_label":
        config.problem_type = "multi_label_classification"
    make: Callable[..., torch.nn.Module] = (
        AutoModelForCausalLM if head == "lm" else AutoModelForSequenceClassification
    ).from_config
    return salience.wrap(make(config).train().to(dtype), tok, name=f"tiny-{shape}")


def _pooled(encoder: str, dtype: torch.dtype) -> Pooled:
    tok = word_tokenizer(CORPUS, 100)
    config = PooledConfig(("bad", "so-so", "good"), tok.get_vocab_size(), encoder, embedding=12, hidden=8, attention=6)
    model = Pooled.new(config, tok, name=f"tiny-{encoder}")
    for p in model.module.parameters():
        torch.nn.init.normal_(p, std=0.5)
    model.module.to(dtype).train()
    return model


def _seq2seq(dtype: torch.dtype) -> Seq2Seq:
    tok = subword_tokenizer(CORPUS, 120)
    config = Seq2SeqConfig(tok.get_vocab_size(), hidden=8, layers=1, dropout=0.0)
    model = Seq2Seq.new(config, tok, name="tiny-seq2seq").after([7, 9])
    for p in model.module.parameters():
        torch.nn.init.normal_(p, std=0.5)
    model.module.to(dtype).train()
    return model


ENCODER_DECODERS = ("t5", "t5_gated", "bart", "marian", "mbart")


def encoder_decoder(shape: str, dtype: torch.dtype = torch.float32, **changes: object) -> EncoderDecoder:
    """An encoder-decoder whose encoder and decoder differ in layers and, where that is possible, in heads."""
    tok = tokenizer("bpe")
    shared = {"vocab_size": len(tok), "d_model": 16, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    sides = {f"{side}_ffn_dim": 24 for side in ("encoder", "decoder")} | {"encoder_layers": 2, "decoder_layers": 1}
    sides |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "max_position_embeddings": 64}
    sides |= {"init_std": 0.3, "scale_embedding": True}
    t5 = {"d_kv": 4, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 4, "initializer_factor": 2.0}
    config = {
        "t5": lambda: T5Config(**{**shared, **t5, "decoder_start_token_id": 1}, **changes),
        "t5_gated": lambda: T5Config(
            **{**shared, **t5, "decoder_start_token_id": 1, "initializer_factor": 1.0},
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            **changes,
        ),
        "bart": lambda: BartConfig(**shared, **sides, bos_token_id=0, **changes),
        "marian": lambda: MarianConfig(**{**shared, **sides, "decoder_start_token_id": 1}, **changes),
        "mbart": lambda: MBartConfig(**shared, **sides, bos_token_id=0, **changes),
    }[shape]()
    torch.manual_seed(0)
    module = AutoModelForSeq2SeqLM.from_config(config).to(dtype).eval()
    if shape == "bart":  # as its checkpoints do
        module.generation_config.forced_bos_token_id = 0
    model = salience.wrap(module, tok, name=shape)
    assert isinstance(model, EncoderDecoder)
    return model
