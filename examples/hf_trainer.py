"""Trains every width with Hugging Face's Trainer, and saves the half as a checkpoint that loads without nestling."""

from pathlib import Path

import torch
import tyro
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import nestling as nl
from nestling.delivery import write_transformers

Batch = dict[str, torch.Tensor]
CUTS, WORDS, LENGTH = (0.25, 0.5, 1.0), 32, 12
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
OPTIONS = {"num_train_epochs": 6, "learning_rate": 3e-3, "save_strategy": "no", "report_to": [], "use_cpu": True}
OPTIONS |= {"remove_unused_columns": False, "label_names": ["labels"], "per_device_train_batch_size": 64}


class NestedTrainer(Trainer):
    """Minimises nestling's objective, which runs a batch at several widths; validates at the full width."""

    def compute_loss(self, model: nl.Nested, inputs: Batch, return_outputs: bool = False, **_: object) -> object:
        """The loss of a batch with ``labels``, as Trainer asks for it."""
        if model.training:
            return nl.elbo(model, inputs, dataset_size=len(self.train_dataset), recipe=nl.Recipe(cuts=CUTS))
        logits = model(**{name: inputs[name] for name in ("input_ids", "attention_mask")})
        loss = F.cross_entropy(logits, inputs["labels"])
        return (loss, {"logits": logits}) if return_outputs else loss


def sentences(number: int, seed: int) -> list[Batch]:
    """Random words, labelled 1 if most are of the first half; a tokenised ``datasets.Dataset`` serves as well."""
    tokens = torch.randint(1, WORDS, (number, LENGTH), generator=torch.Generator().manual_seed(seed))
    labels = ((tokens < WORDS // 2).sum(1) > LENGTH // 2).long()
    rows = zip(tokens, labels, strict=True)
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": label} for row, label in rows]


def main(out: Path) -> None:
    """Train, print what each width gives, and save the half to a new folder."""
    torch.manual_seed(0)
    bert = BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=2, **SIZES))  # or from_pretrained
    train, test = sentences(1000, seed=0), sentences(500, seed=1)
    example = {name: torch.stack([row[name] for row in train[:2]]) for name in ("input_ids", "attention_mask")}
    # feed-forward units alone, since BERT's config can't say fewer heads: write_transformers(..., code=True) can
    nested = nl.nest(bert, example, kinds=("neuron",), exclude=("bert.pooler.dense",), num_blocks=4, num_always=1)
    options = TrainingArguments(str(out), **OPTIONS)
    trainer = NestedTrainer(nested, options, train_dataset=train, eval_dataset=test)
    trainer.train()
    print(f"loss at full width {trainer.evaluate()['eval_loss']:.3f}\nwidth  parameters  accuracy    ECE")
    for cut, scores in zip(CUTS, nl.evaluate(nested, DataLoader(test, 100), cut=CUTS, samples=0), strict=True):
        print(f"{cut:5.0%}  {nl.cost(nested, cut).params:10,}  {scores.accuracy:8.1%}  {scores.ece:5.1%}")
    half = BertForSequenceClassification.from_pretrained(write_transformers(nested, out / "half", cut=0.5))
    print(f"the half has {half.config.intermediate_size} units and says {half(**example).logits.argmax(1).tolist()}")


if __name__ == "__main__":
    tyro.cli(main)
