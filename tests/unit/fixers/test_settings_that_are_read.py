"""A setting of the process that the program reads, and may print or save, is left as it is."""

from __future__ import annotations

import pytest

from diagnose.fixer import Advice, Edits, Facts, Site, example_request
from diagnose.plugins import load

FIXERS = load().fixers
TOP = "import gc, os\nimport torch\nfrom torch.backends import cudnn\n\nloader = make()\n"
LOOP = "for step in range(9):\n    loss = model(x).sum()\n    loss.backward()\n    optimizer.step()\n"
FACTS = Facts(
    torch_version="2.13.0",
    device_name="NVIDIA H200",
    device_capability=(9, 0),
    matmul_precision="highest",
    cudnn_benchmark=False,
    cudnn_deterministic=False,
    deterministic=False,
    cpu_count=4,
)
RULES = {
    "allow-tf32": "fp32-matmul",
    "cudnn-benchmark": "conv-heuristics",
    "expandable-segments": "fragmented-memory",
    "gc-schedule": "gc-pause",
    "set-num-threads": "cpu-contention",
    "drop-debug": "debug-leftovers",
}
BLOCKING = "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'"


def answer(name: str, line: str) -> object:
    sites = [Site("DataLoader", "train.py", 5, arguments={"num_workers": 2})]
    request = example_request(RULES[name], TOP + line + "\n" + LOOP, sites=sites, facts=FACTS, lines=[8])
    return FIXERS[name].rewrite(request)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("allow-tf32", "print(torch.get_float32_matmul_precision())"),
        ("allow-tf32", "print(torch.backends.cuda.matmul.allow_tf32)"),
        ("allow-tf32", "before = torch.backends.cuda.matmul.fp32_precision"),
        ("cudnn-benchmark", "print(f'{torch.backends.cudnn.benchmark}')"),
        ("cudnn-benchmark", "report = {'benchmark': cudnn.benchmark}"),
        ("expandable-segments", "print(os.environ.get('PYTORCH_ALLOC_CONF', ''))"),
        ("expandable-segments", "print(os.environ['PYTORCH_CUDA_ALLOC_CONF'])"),
        ("set-num-threads", "print(torch.get_num_threads())"),
    ],
)
def test_a_setting_that_is_read_stays_and_the_line_is_named(name: str, line: str) -> None:
    found = answer(name, line)
    assert isinstance(found, Advice)
    assert "train.py:6" in found.text


def test_collections_stay_where_the_program_asks_whether_there_are_any() -> None:
    assert answer("gc-schedule", "print(gc.isenabled())") is None


@pytest.mark.parametrize("name", ["expandable-segments", "set-num-threads", "drop-debug"])
@pytest.mark.parametrize(
    ("line", "shows"),
    [
        ("print(os.environ)", True),
        ("print(len(os.environ))", True),
        ("for name, value in os.environ.items(): print(name, value)", True),
        ("json.dump(dict(os.environ), f)", True),
        ("report = {'step': 0, **os.environ}; print(report)", True),
        ("seen = os.environ.copy(); torch.save(seen, 'seen.pt')", True),
        ("env = os.environ; print(env['HOME'], env)", True),
        ("print(os.environ['HOME'], os.environ.get('RANK'), 'RANK' in os.environ)", False),
        ("subprocess.run(['ls'], env={**os.environ, 'RANK': '1'})", False),
        ("env = os.environ.copy(); env['RANK'] = '1'; subprocess.run(['ls'], env=env)", False),
        ("env = dict(os.environ, RANK='1'); subprocess.run(['ls'], env=env)", False),
    ],
)
def test_the_environment_stays_where_the_program_may_show_all_of_it(name: str, line: str, shows: bool) -> None:
    found = answer(name, line + (f"; {BLOCKING}" if name == "drop-debug" else ""))
    if shows:
        assert isinstance(found, Advice)
        assert "train.py:6" in found.text
    else:
        assert isinstance(found, Edits)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("allow-tf32", "torch.backends.cuda.matmul.allow_tf32 = False"),
        ("cudnn-benchmark", "torch.backends.cudnn.benchmark = False"),
        ("cudnn-benchmark", "print(args.benchmark, cudnn.version())"),
        ("expandable-segments", "os.environ['PYTORCH_ALLOC_CONF'] = 'max_split_size_mb:64'"),
        ("gc-schedule", "print(len(os.environ))"),
        ("set-num-threads", "print(torch.get_num_interop_threads())"),
    ],
)
def test_a_setting_that_the_program_only_sets_is_edited(name: str, line: str) -> None:
    assert isinstance(answer(name, line), Edits)
