"""Trains a Hugging Face classifier as it comes: dictionaries with labels go in, and an object with logits comes out."""

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

import nestling as nl

EPOCHS, CUTS = 6, (0.25, 0.5, 1.0)
WORDS, LENGTH = 32, 12


def sentences(number: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Sentences of random words, labelled 1 if words of the first half of the vocabulary are in the majority."""
    tokens = torch.randint(1, WORDS, (number, LENGTH), generator=torch.Generator().manual_seed(seed))
    labels = ((tokens < WORDS // 2).sum(1) > LENGTH // 2).long()
    rows = zip(tokens, labels, strict=True)
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": label} for row, label in rows]


def main() -> None:
    """Train on made-up sentences, print what each width gives, and take the half out as a smaller BERT."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        max_position_embeddings=LENGTH,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)  # or .from_pretrained(...)
    train, validation, test = (DataLoader(sentences(n, n), 64, shuffle=n > 500) for n in (1000, 300, 500))
    example = {key: value[:2] for key, value in next(iter(train)).items() if key != "labels"}
    nested = nl.nest(model, example, num_blocks=4, num_always=1)  # its logits are taken: output= picks something else
    nl.train(nested, (train, validation), nl.Recipe(epochs=EPOCHS, cuts=CUTS), quiet=True)

    print("width  parameters  accuracy    ECE")
    for cut, scores in zip(CUTS, nl.evaluate(nested, test, cut=CUTS), strict=True):
        print(f"{cut:5.0%}  {nl.cost(nested, cut).params:10,}  {scores.accuracy:8.1%}  {scores.ece:5.1%}")

    small = nl.extract(nested, 0.5)  # plain modules of torch, which give the logits
    print(f"\nthe half says {small(**example).argmax(1).tolist()}")


if __name__ == "__main__":
    main()
