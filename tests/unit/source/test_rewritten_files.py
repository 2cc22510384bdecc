"""Files that the program writes while it trains are read anew: workers do not live on, and load nothing ahead."""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

LABEL = "return int(Path(f'labels/{i}.txt').read_text()), i"
RELABEL = "for k in range(9):\n    Path(f'labels/{k}.txt').write_text(str(k))"
ROOTED = "return torch.load(os.path.join(self.root, f'{i}.pt')), i"
PASSED = "return torch.load(os.path.join(self.transform, f'{i}.pt')), i"
TOP = "import os\nfrom pathlib import Path\nROOT = make_root()\n"


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        (program(LABEL, epoch=RELABEL, top=TOP), "write_text"),
        (program(ROOTED, epoch="torch.save(model, os.path.join(dataset.root, 'hard.pt'))", top=TOP), "torch.save"),
        (
            program("return torch.load(f'{ROOT}/{i}.pt'), i", epoch="torch.save(model, f'{ROOT}/1.pt')", top=TOP),
            "torch.save",
        ),
        (program("return np.load('rows.npy')[i], i", epoch="np.save('rows.npy', rows)", top=TOP), "np.save"),
        (
            program(PASSED, dataset="Images(paths, 'labels')", epoch="torch.save(model, f'labels/{epoch}.pt')"),
            "torch.save",
        ),
    ],
    ids=["spelled", "attribute of the dataset", "variable of the module", "one file", "passed to the dataset"],
)
def test_workers_do_not_live_on_where_files_of_samples_are_written_between_epochs(text: str, mark: str) -> None:
    refused("persistent-workers", text, mark)
    assert isinstance(asked("loader-workers", text), Edits)


def test_a_loop_over_the_values_of_a_tensor_is_no_epoch() -> None:
    """Labels that a model gives between two epochs: workers that are started anew read them."""
    relabel = RELABEL.replace("for k in range(9)", "for k, label in enumerate(model(x).argmax(1).tolist())")
    assert isinstance(asked("loader-workers", program(LABEL, epoch=relabel, top=TOP)), Edits)
    refused("loader-workers", program(LABEL, step=relabel, top=TOP), "write_text")


def test_samples_read_from_files_that_are_written_in_a_step_are_not_loaded_ahead() -> None:
    refused("loader-workers", program(LABEL, step=RELABEL, top=TOP), "write_text")


@pytest.mark.parametrize(
    "text",
    [
        program(LABEL, top=TOP + RELABEL + "\n"),
        program(ROOTED, epoch="torch.save(model.state_dict(), os.path.join(out_dir, f'{epoch}.pt'))", top=TOP),
        program("return torch.load(cfg.data.root)[i], i", epoch="torch.save(model, cfg.data.out)", top=TOP),
        program(PASSED, dataset="Images(paths, 'in' + os.sep)", epoch="torch.save(m, 'out' + os.sep)", top=TOP),
        program(LABEL, epoch="with open('log.txt', 'a') as f:\n    f.write('done')", top=TOP),
        program(PASSED, dataset="Images(paths, 'labels')", epoch="torch.save(model, f'out/{epoch}.pt')"),
        program(LABEL, epoch="print(Path('labels/1.txt').read_text(), open('labels/2.txt').read())", top=TOP),
    ],
    ids=["before", "checkpoints", "others of the settings", "separators", "a log", "another folder", "only read"],
)
def test_workers_live_on_where_the_files_of_samples_stay_as_they_are(text: str) -> None:
    assert isinstance(asked("persistent-workers", text), Edits)
