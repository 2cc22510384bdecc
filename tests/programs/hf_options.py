"""Fine-tunes a small classifier on texts of any length, padded by a collator of its own; options from outside."""

import sys
from dataclasses import dataclass, field

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class DataArguments:
    rows: int = field(default=128, metadata={"help": "How many texts."})


def pad(rows):
    ids = pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    labels = torch.tensor([row["label"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def main():
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        data_args, training_args = parser.parse_json_file(json_file=sys.argv[1])
    else:
        data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    texts = [{"input_ids": torch.arange(1, 5 + n % 9), "label": n % 2} for n in range(data_args.rows)]
    config = BertConfig(vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    model = BertForSequenceClassification(config)
    trainer = Trainer(model=model, args=training_args, train_dataset=texts, data_collator=pad)
    result = trainer.train()
    print("loss", result.training_loss)


if __name__ == "__main__":
    main()
