"""Compiled graphs that torch would keep in its cache with wrong sizes are not kept, and all others are."""

from __future__ import annotations

import copyreg
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from watching import run

from diagnose.cli.programs.ending import judge_exit
from diagnose.collect.inside.hooks import inductor_cache_workaround
from diagnose.collect.launch import Outcome
from diagnose.trace.readers import open_traces

VIEWS: Any = torch._C._functionalization
WRONG = inductor_cache_workaround._release(torch.__version__) < inductor_cache_workaround.MENDED


@pytest.fixture
def table() -> Iterator[dict[Any, Any]]:
    """How types are pickled: as it was, in the end."""
    found = copyreg.dispatch_table
    before = dict(found)
    yield found
    found.clear()
    found.update(before)


def test_such_a_graph_is_traced_anew_and_any_other_comes_from_the_cache(tmp_path: Path) -> None:
    ran = run(tmp_path, "views.py", extra={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")})
    assert ran.returncode == 0, ran.stderr
    views, others = json.loads(ran.stdout)
    assert others == {"saved": 1, "hit": 1, "bypass": 0}
    assert views == ({"saved": 0, "hit": 0, "bypass": 2} if WRONG else others)
    assert "cache" not in ran.stderr, "what is not kept is no matter for the user's screen"


@pytest.mark.usefixtures("table")
def test_a_description_with_sizes_that_would_be_read_from_freed_memory_is_not_written() -> None:
    torch_2_13: Any = SimpleNamespace(__version__="2.13.0+cpu", _C=torch._C)
    view = VIEWS._unsafe_view_ViewMeta((False, [2, 3, 8]))
    inductor_cache_workaround.refuse(torch_2_13)
    with pytest.raises(Exception, match="TORCHINDUCTOR_AUTOGRAD_CACHE=0"):
        pickle.dumps(view)
    sound = VIEWS.unsqueeze_ViewMeta((False, False, VIEWS.InverseReturnMode.AlwaysView, 1))
    assert pickle.loads(pickle.dumps(sound)).as_tuple() == sound.as_tuple()


@pytest.mark.parametrize("version", ["2.14.0", "2.14.1+cu130", "2.15.0a0+git1234", "3.0", "of a distributor"])
def test_a_release_that_writes_them_right_is_left_alone(table: dict[Any, Any], version: str) -> None:
    before = dict(table)
    other: Any = SimpleNamespace(__version__=version, _C=torch._C)
    inductor_cache_workaround.refuse(other)
    assert table == before


def test_a_release_that_cannot_write_them_at_all_is_left_alone(table: dict[Any, Any]) -> None:
    before = dict(table)
    old: Any = SimpleNamespace(__version__="2.4.1", _C=SimpleNamespace())
    inductor_cache_workaround.refuse(old)
    assert table == before


@pytest.mark.skipif(WRONG, reason="this release of torch reads freed memory here")
def test_the_release_said_to_be_mended_is() -> None:
    view = VIEWS._unsafe_view_ViewMeta((False, [2, 3, 8]))
    assert pickle.loads(pickle.dumps(view)).as_tuple() == (False, [2, 3, 8])


TRACEBACK = """  File "/torch/_functorch/_aot_autograd/functional_utils.py", line 269, in gen_alias_from_base
    out = _functionalization.apply_view_meta_sequence(
RuntimeError: shape '[140594341417512, 2353656284352657122, 3072]' is invalid for input of size 25165824
"""
CRASH = """Fatal Python error: Segmentation fault

Current thread 0x00007fca (most recent call first):
  File "/site-packages/torch/_functorch/_aot_autograd/functional_utils.py", line 269 in gen_alias_from_base
"""


def test_last_words_tell_of_such_a_death() -> None:
    assert inductor_cache_workaround.died_of_it(TRACEBACK)
    assert inductor_cache_workaround.died_of_it(CRASH)
    assert inductor_cache_workaround.died_of_it(CRASH.replace("gen_alias_from_base", "_pickle_entry"))
    assert not inductor_cache_workaround.died_of_it(CRASH.replace("gen_alias_from_base", "forward"))
    assert not inductor_cache_workaround.died_of_it(TRACEBACK.replace("gen_alias_from_base", "forward"))
    assert not inductor_cache_workaround.died_of_it("RuntimeError: CUDA error in gen_alias_from_base")


def gen_alias_from_base() -> None:
    raise RuntimeError("shape '[94723676698103, 8405236900372186041, 96]' is invalid for input of size 3072")


DIES = """
import torch
def gen_alias_from_base():
    raise RuntimeError("shape '[94723676698103, 8405236900372186041, 96]' is invalid for input of size 3072")
gen_alias_from_base()
"""


def test_a_watched_program_that_dies_of_it_before_its_first_step_says_so(tmp_path: Path) -> None:
    ran = run(tmp_path, "-c", DIES)
    assert ran.returncode == 1
    seen: Any = SimpleNamespace(outcome=Outcome(1, False, False, (0,)), traces=open_traces([tmp_path]))
    code, message = judge_exit(seen, cancelled=False)
    assert (code, message) == (3, f"the program failed with exit code 1: {inductor_cache_workaround.REMEDY}")


@pytest.mark.parametrize("raises", [lambda: int("x"), lambda: torch.ones(3).view(2)], ids=["other", "own view"])
def test_another_end_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch, raises: Any) -> None:
    for name in ("last_value", "last_exc"):
        monkeypatch.setattr(sys, name, None, raising=False)
    assert not inductor_cache_workaround.ended_by_it()
    for end, expected in ((raises, False), (gen_alias_from_base, True)):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            end()
        monkeypatch.setattr(sys, "last_value", caught.value, raising=False)
        assert inductor_cache_workaround.ended_by_it() is expected
