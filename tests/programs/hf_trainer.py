"""Trains a small language model with Hugging Face's Trainer, on sentences made up here; nothing is downloaded."""

import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 12


class Sentences(Dataset):
    """Rows of words that count upwards."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        ids = (torch.arange(24) + index) % 61
        return {"input_ids": ids, "labels": ids}


class PrintLosses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print("loss", state.global_step, logs["loss"])


def main():
    set_seed(0)
    config = GPT2Config(
        vocab_size=61,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    args = TrainingArguments(
        output_dir="out",
        max_steps=STEPS,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
    )
    trainer = Trainer(model=model, args=args, train_dataset=Sentences(), callbacks=[PrintLosses()])
    trainer.train()


if __name__ == "__main__":
    main()
