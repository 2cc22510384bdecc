"""Programs whose loop is a library's: Hugging Face's Trainer, Accelerate and Lightning, told in their own arguments."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from diagnose.collect.inside.source_ownership import Ownership
from diagnose.fixer import Advice, Answer, Edits, Facts, Gate, Request, Site, example_request
from diagnose.model import Scalar
from diagnose.plugins import load
from diagnose.source.settings.command_line import COMMAND_LINE, CommandLine

FIXERS = load().fixers
H200 = Facts(cpu_count=8, device_name="NVIDIA H200", device_capability=(9, 0), matmul_precision="highest")
CPU = Facts(cpu_count=2)
HEAD = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
TRAIN = "Trainer(model, args, train_dataset=data).train()\n"


def built_by_library(**arguments: Scalar) -> list[Site]:
    """The loader of the Trainer, and Accelerate's around it."""
    options: dict[str, Scalar] = {
        "num_workers": 0,
        "pin_memory": True,
        "shuffle": True,
        "dataset": "Rows",
        "iterable": False,
    }
    first = Site("DataLoader", "/lib/transformers/trainer.py", 1051, None, {**options, **arguments}, False)
    wrapped = {**options, **arguments, "shuffle": False}
    return [first, Site("DataLoader", "/lib/accelerate/data_loader.py", 441, None, wrapped, False)]


def asked(
    text: str,
    *,
    sites: Sequence[Site] = (),
    facts: Facts = H200,
    setting: Mapping[str, Scalar] | None = None,
    configs: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
) -> Request:
    """What a run of that program leads to."""
    request = example_request("input-bound", text, sites=sites, facts=facts, setting=setting)
    return replace(request, configs=configs or {}, words=("train.py", *words))


def fixed(name: str, request: Request) -> Answer:
    """What a fixer answers."""
    return FIXERS[name].rewrite(request)


def text_of(answer: Answer, path: str = "train.py") -> str:
    """The file after an edit."""
    assert isinstance(answer, Edits), answer
    return answer.files[path]


def workers(text: str, count: int = 4, **more: Any) -> Answer:
    """Worker processes for the loader that the Trainer builds."""
    return fixed("loader-workers", asked(text, sites=built_by_library(), setting={"num_workers": count}, **more))


def test_workers_of_the_trainers_loader_are_an_argument() -> None:
    text = HEAD + "args = TrainingArguments('out', max_steps=9)\n" + TRAIN
    assert "TrainingArguments('out', max_steps=9, dataloader_num_workers=4)" in text_of(workers(text))


def test_a_number_is_changed_where_it_is_kept() -> None:
    call = "args = TrainingArguments('out', dataloader_num_workers=WORKERS)\n"
    assert "WORKERS = 4\n" in text_of(workers(HEAD + "WORKERS = 0\n" + call + TRAIN))
    parser = "parser.add_argument('--workers', type=int, default=0)\nopt = parser.parse_args()\n"
    assert "default=4)" in text_of(workers(HEAD + parser + call.replace("WORKERS", "opt.workers") + TRAIN))


def test_options_of_a_config_file_are_changed_there() -> None:
    text = HEAD + "config = yaml.safe_load(open('c.yaml'))\nargs = TrainingArguments(**config['train'])\n" + TRAIN
    config = "train:\n  output_dir: out\n  dataloader_num_workers: 0 # few\n"
    assert "dataloader_num_workers: 4 # few" in text_of(workers(text, configs={"c.yaml": config}), "c.yaml")


PARSED = HEAD + "parser = HfArgumentParser(TrainingArguments)\n(args,) = parser.parse_args_into_dataclasses()\n" + TRAIN


def test_options_of_the_command_line_get_another_default() -> None:
    assert "\nparser.set_defaults(dataloader_num_workers=4)\n(args,)" in text_of(workers(PARSED))


def test_what_the_command_line_says_is_said_there() -> None:
    answer = workers(PARSED, words=("--dataloader_num_workers", "1"))
    assert isinstance(answer, Advice) and "--dataloader_num_workers 4" in answer.text


@pytest.mark.parametrize(
    ("words", "after"),
    [
        ("--output_dir out", "--output_dir out --dataloader_num_workers 4"),
        ("--dataloader_num_workers 1 --bf16", "--dataloader_num_workers 4 --bf16"),
        ("--dataloader-num-workers=1", "--dataloader-num-workers=4"),
    ],
)
def test_a_command_line_that_can_be_edited_says_it(words: str, after: str) -> None:
    request = asked(PARSED, sites=built_by_library(), setting={"num_workers": 4})
    answer = fixed("loader-workers", replace(request, words=CommandLine(("train.py", *words.split()), 1)))
    assert isinstance(answer, Edits)
    assert " ".join(answer.files[COMMAND_LINE].split()) == f"train.py {after}"


def test_switches_of_the_library_are_options_too() -> None:
    words = CommandLine(("train.py", "--output_dir", "out"), 1)
    precise = replace(asked(PARSED), words=words)
    answer = fixed("autocast-bf16", precise)
    assert isinstance(answer, Edits)
    assert answer.files[COMMAND_LINE].split() == ["train.py", "--output_dir", "out", "--bf16"]
    compiled = fixed("compile-model", precise)
    assert isinstance(compiled, Edits)
    assert compiled.files[COMMAND_LINE].split()[3:] == ["--torch_compile", "--tf32", "False"]


def test_defaults_that_are_there_already_are_extended() -> None:
    text = PARSED.replace("(args,)", "parser.set_defaults(bf16=True)\n(args,)")
    assert "set_defaults(bf16=True, dataloader_num_workers=4)" in text_of(workers(text))


@pytest.mark.parametrize(
    ("path", "config", "after"),
    [
        ("a.json", '{\n    "bf16": false\n}\n', '"bf16": false,\n    "dataloader_num_workers": 4\n}'),
        ("a.json", '{"output_dir": "out"}', '{"output_dir": "out", "dataloader_num_workers": 4}'),
        ("a.json", '{\n  "dataloader_num_workers": 0\n}', '"dataloader_num_workers": 4\n'),
        ("a.yaml", "output_dir: out\n", "output_dir: out\ndataloader_num_workers: 4\n"),
    ],
)  # fmt: skip
def test_a_file_of_options_is_edited(path: str, config: str, after: str) -> None:
    text = PARSED.replace("parse_args_into_dataclasses()", f"parse_{path[2:]}_file(sys.argv[1])")
    made = text_of(workers(text, configs={path: config}, words=(path,)), path)
    assert after in made
    if path.endswith("json"):
        assert json.loads(made)["dataloader_num_workers"] == 4


def test_a_field_of_the_programs_own_arguments_is_changed() -> None:
    own = "@dataclass\nclass Mine(TrainingArguments):\n    dataloader_num_workers: int = field(default=0)\n"
    text = HEAD + own + PARSED.removeprefix(HEAD).replace("(TrainingArguments)", "(Mine)")
    assert "dataloader_num_workers: int = field(default=4)" in text_of(workers(text))


def test_what_needs_workers_waits_for_them() -> None:
    sites = built_by_library(num_workers=2, persistent_workers=False, prefetch_factor=2)
    given = HEAD + "args = TrainingArguments('out', dataloader_num_workers=2)\n" + TRAIN
    kept = text_of(fixed("persistent-workers", asked(given, sites=sites)))
    assert "dataloader_num_workers=2, dataloader_persistent_workers=True)" in kept
    ahead = text_of(fixed("loader-prefetch", asked(given, sites=sites, setting={"prefetch_factor": 4})))
    assert "dataloader_prefetch_factor=4)" in ahead
    words = ("--dataloader_num_workers", "2")
    asked_for = fixed("persistent-workers", asked(PARSED, sites=sites, words=words))
    assert isinstance(asked_for, Advice)


def test_a_library_that_streams_is_left_alone() -> None:
    text = HEAD + "args = TrainingArguments('out')\n" + TRAIN
    answer = fixed("loader-workers", asked(text, sites=built_by_library(iterable=True), setting={"num_workers": 2}))
    assert isinstance(answer, Advice) and "IterableDataset" in answer.text


def test_two_trainers_are_not_told_apart() -> None:
    text = HEAD + "args = TrainingArguments('a')\nmore = TrainingArguments('b')\n" + TRAIN
    answer = workers(text)
    assert not isinstance(answer, Edits) or "dataloader_num_workers" not in answer.files["train.py"]


def test_compiling_through_the_trainer_does_not_allow_tf32_by_the_way() -> None:
    text = HEAD + "args = TrainingArguments('out')\n" + TRAIN
    assert "torch_compile=True, tf32=False)" in text_of(fixed("compile-model", asked(text)))
    allowed = text_of(fixed("allow-tf32", asked(text)))
    assert "tf32=True)" in allowed
    assert "tf32=True, torch_compile=True)" in text_of(fixed("compile-model", asked(allowed)))
    assert "TrainingArguments('out', torch_compile=True)" in text_of(fixed("compile-model", asked(text, facts=CPU)))


def test_tf32_that_the_trainer_was_told_of_is_changed_there() -> None:
    text = HEAD + "args = TrainingArguments('out', tf32=False)\n" + TRAIN
    assert "tf32=True)" in text_of(fixed("allow-tf32", asked(text)))
    assert fixed("allow-tf32", asked(text.replace("False", "True"))) is None


def test_the_trainers_optimizer_has_a_name_for_its_fused_form() -> None:
    site = [Site("optimizer", "/lib/transformers/trainer.py", 1, None, {"name": "AdamW", "fused": None}, False)]
    text = HEAD + "args = TrainingArguments('out', optim='adamw_torch')\n" + TRAIN
    assert "optim='adamw_torch_fused')" in text_of(fixed("fused-optimizer", asked(text, sites=site)))
    other = fixed("fused-optimizer", asked(text.replace("adamw_torch", "lion_8bit"), sites=site))
    assert isinstance(other, Advice)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (PARSED, "parser.set_defaults(bf16=True)"),
        (
            "from accelerate import Accelerator\nparser.add_argument('--mixed_precision', default='no')\n"
            "args = parser.parse_args()\naccelerator = Accelerator(mixed_precision=args.mixed_precision)\n",
            "default='bf16')",
        ),
        (
            "from pytorch_lightning import Trainer\nPRECISION = '32-true'\nTrainer(precision=PRECISION)\n",
            "PRECISION = 'bf16-mixed'",
        ),
        (
            "from accelerate import Accelerator\nlogging = {}\nif args.track:\n    logging['log_with'] = 'all'\n"
            "accelerator = Accelerator(gradient_accumulation_steps=2, **logging)\n",
            "logging = {}\nif args.track:\n    logging['log_with'] = 'all'\n"
            'accelerator = Accelerator(gradient_accumulation_steps=2, **logging, mixed_precision="bf16")\n',
        ),
        (
            "from accelerate import Accelerator\noptions = {}\nif args.half:\n    options['mixed_precision'] = 'fp16'\n"
            "accelerator = Accelerator(gradient_accumulation_steps=2, **options)\n",
            "options = {'mixed_precision': 'bf16'}\n",
        ),
    ],
)
def test_precision_is_set_where_it_is_kept(text: str, after: str) -> None:
    answer = fixed("autocast-bf16", asked(text))
    assert after in text_of(answer)


def test_lightning_does_not_clip_for_a_fused_optimizer_in_mixed_precision() -> None:
    mixed = 'import lightning as L\nimport torch\nL.Trainer(gradient_clip_val=1.0, precision="bf16-mixed")\n'
    optimizer = "torch.optim.AdamW(model.parameters())\n"
    refused = fixed("fused-optimizer", asked(mixed + optimizer))
    assert isinstance(refused, Advice) and "clip" in refused.text
    plain = mixed.replace(', precision="bf16-mixed"', "")
    assert "fused=True" in text_of(fixed("fused-optimizer", asked(plain + optimizer)))
    refused = fixed("autocast-bf16", asked(plain + optimizer.replace("())", "(), fused=True)")))
    assert isinstance(refused, Advice) and "clip" in refused.text


LIGHTNING = """import lightning as L
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make()
        self.loss_fn = make_loss()
    def forward(self, x):
        return self.net(x)
    def training_step(self, batch, batch_idx):
        loss = self.shared(batch)
        self.log_dict({"loss": loss.detach().item(), "twice": 2 * loss.item()})
        return loss
    def shared(self, batch):
        return self.loss_fn(CALL(batch[0]), batch[1])
"""


def test_lightning_modules_are_compiled_where_they_are_built() -> None:
    by_itself = LIGHTNING.replace("CALL", "self") + "model = Net()\nL.Trainer().fit(model)\n"
    assert "model = Net()\nmodel.compile()\nL.Trainer" in text_of(fixed("compile-model", asked(by_itself)))
    by_part = LIGHTNING.replace("CALL", "self.net") + "L.Trainer().fit(Net())\n"
    made = text_of(fixed("compile-model", asked(by_part)))
    assert "self.net = make()\n        self.net.compile()\n        self.loss_fn" in made
    nowhere = fixed("compile-model", asked(LIGHTNING.replace("CALL", "self") + "L.Trainer().fit(Net())\n"))
    assert isinstance(nowhere, Advice)


def test_lightning_logs_tensors() -> None:
    made = text_of(fixed("defer-item", asked(LIGHTNING.replace("CALL", "self"))))
    assert '{"loss": loss, "twice": 2 * loss.item()}' in made


def test_attention_that_the_library_writes_out_is_asked_for_fused() -> None:
    head = "from transformers import AutoModelForCausalLM\nKIND = 'eager'\n"
    text = head + "model = AutoModelForCausalLM.from_config(config, attn_implementation=KIND)\n"
    answer = fixed("use-sdpa", asked(text))
    assert "KIND = 'sdpa'" in text_of(answer)
    assert isinstance(answer, Edits) and answer.gate is Gate.TRAINING  # it may drop weights at random
    plain = fixed("use-sdpa", asked(text.replace("AutoModel", "LlamaModel")))
    assert isinstance(plain, Edits) and plain.gate is None
    assert fixed("use-sdpa", asked(text.replace("'eager'", "'sdpa'"))) is None


def test_accumulation_is_traded_in_the_librarys_arguments() -> None:
    text = HEAD + "args = TrainingArguments('out', gradient_accumulation_steps=4)\n" + TRAIN
    answer = fixed("bigger-microbatch", asked(text, setting={"factor": 2}))
    assert isinstance(answer, Edits) and answer.gate is Gate.TRAINING
    assert "gradient_accumulation_steps=2, per_device_train_batch_size=16)" in answer.files["train.py"]
    lightning = (
        "import lightning as L\nfrom torch.utils.data import DataLoader\nloader = DataLoader(data, batch_size=8)\n"
        "L.Trainer(accumulate_grad_batches=2).fit(model, loader)\n"
    )
    made = text_of(fixed("bigger-microbatch", asked(lightning, setting={"factor": 2})))
    assert "batch_size=16" in made and "accumulate_grad_batches=1" in made
    counted = lightning.replace("=2)", "=2, limit_train_batches=9)")
    assert isinstance(fixed("bigger-microbatch", asked(counted, setting={"factor": 2})), Advice)


def test_a_librarys_wrapper_of_a_constructor_is_no_builder() -> None:
    """Lightning wraps the constructor of DataLoader while a data module makes its loaders."""
    library: dict[str, Any] = {}
    code = "def wrapper(made, look):\n    return look(made)\ndef build(look):\n    return wrapper(object(), look)\n"
    exec(compile(code, "/opt/lib/site-packages/library.py", "exec"), library)
    ownership = Ownership()

    def found(made: object) -> tuple[str, str]:
        callers = ownership.caller(sys._getframe(1), made)
        return tuple(each.f_code.co_name if each is not None else "" for each in callers)  # type: ignore[return-value]

    here = test_a_librarys_wrapper_of_a_constructor_is_no_builder.__name__
    assert library["wrapper"](object(), found) == (here, here)
    assert library["build"](found) == ("build", here)
