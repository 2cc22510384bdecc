"""What a loader's samples are followed into: code that makes them or builds their dataset, and no more."""

from __future__ import annotations

from textwrap import dedent

import libcst as cst
import pytest

from diagnose.source.samples.dataset_rng import sample_draw
from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.tree.definitions import Definitions
from diagnose.source.tree.memo import parse_all

SAMPLES = """
class Samples:
    def __init__(self, path, change=None):
        self.path = path

    def __getitem__(self, index):
        return read(self.path, index)
"""


def followed(**files: str) -> set[str]:
    """The functions that run to build the dataset of the first `DataLoader` of train.py, or for its samples."""
    texts = {f"/program/{name}.py": dedent(text) for name, text in files.items()}
    sources = parse_all(texts)
    code = SampleCode(sources)
    loader = next(iter(sources["/program/train.py"].calls_named("DataLoader")))
    code.builds("/program/train.py", loader.args[0].value)
    return {each.name.value for each in (*code.building, *code.sampling) if isinstance(each, cst.FunctionDef)}


def test_an_attribute_of_the_options_is_followed_and_the_others_are_not() -> None:
    found = followed(
        data=SAMPLES,
        train="""
            from data import Samples

            args, rest = options()
            args.path = find_path()
            args.classes = build_model().classes
            loader = DataLoader(Samples(args.path))

            def find_path():
                return "."

            def build_model():
                return Model()
            """,
    )
    assert "find_path" in found
    assert "build_model" not in found


PREPARED = """
    from data import Samples

    model, path = prepare(find_path())
    loader = DataLoader(Samples(path))

    def prepare(path):
        {}
        return build_model(), {}

    def build_model():
        return Model()

    def find_path():
        return "."
    """


@pytest.mark.parametrize(
    ("lines", "returned", "whole"),
    [
        ("found = path / 'train'", "found", False),
        ("print(path)", "path", False),
        ("found = [path]; found.append(build_model())", "found", True),
        ("found = {'path': path}; found['of'] = build_model()", "found", True),
        ("found = Path(path); fill(found)", "found", True),
        ("if path is None: return None", "path", True),
    ],
)
def test_of_several_things_that_a_function_returns_the_one_is_followed(lines: str, returned: str, whole: bool) -> None:
    found = followed(data=SAMPLES, train=PREPARED.format(lines, returned))
    assert "find_path" in found
    assert ("build_model" in found) is whole


def test_options_that_are_handed_on_as_a_whole_are_followed_as_a_whole() -> None:
    found = followed(
        data=SAMPLES,
        train="""
            from data import Samples

            args, rest = options()
            args.change = make_change()
            loader = DataLoader(Samples(args))

            def make_change():
                return flip
            """,
    )
    assert "make_change" in found


def test_a_function_is_followed_with_what_this_program_gives_it_for_these_samples_alone() -> None:
    found = followed(
        data=SAMPLES,
        train="""
            from data import Samples

            def built(kind, of):
                return kind(of)

            model = built(Model, of=weights())
            loader = DataLoader(built(Samples, of=folder()))

            def weights():
                return 1

            def folder():
                return "."
            """,
    )
    assert {"built", "folder", "__getitem__"} <= found
    assert "weights" not in found


def test_a_parameter_through_which_the_dataset_comes_is_what_any_call_passes() -> None:
    found = followed(
        data=SAMPLES,
        train="""
            from data import Samples

            def load(dataset):
                return DataLoader(dataset)

            load(Samples(first()))
            load(Samples(second()))

            def first():
                return "."

            def second():
                return ".."
            """,
    )
    assert {"first", "second"} <= found


def test_a_variable_of_another_function_is_another_variable() -> None:
    found = followed(
        data=SAMPLES,
        train="""
            from data import Samples

            def load():
                source, count = folder(), 1
                return DataLoader(Samples(source))

            def train():
                source, count = build_model(), 1

            def folder():
                return "."

            def build_model():
                return Model()
            """,
    )
    assert "folder" in found
    assert "build_model" not in found


def test_a_global_that_a_function_binds_is_followed() -> None:
    found = followed(
        data=SAMPLES,
        train="""
            from data import Samples

            source = None
            loader = DataLoader(Samples(source))

            def prepare():
                global source
                source = folder()

            def folder():
                return "."
            """,
    )
    assert "folder" in found


def test_what_comes_from_another_package_is_no_function_of_the_program() -> None:
    layers = "class Normalize:\n    def __init__(self):\n        start()\n\ndef start():\n    pass\n"
    program = "{}\nfrom data import Samples\nloader = DataLoader(Samples('.', Normalize()))\n"
    imports = "from torchvision.transforms import Normalize"
    assert "start" not in followed(data=SAMPLES, layers=layers, train=program.format(imports))
    imports = "from layers import Normalize"
    assert "start" in followed(data=SAMPLES, layers=layers, train=program.format(imports))


def test_samples_of_a_dataset_that_an_attribute_holds_are_seen_to_draw() -> None:
    text = dedent(
        """
        class Trainer:
            def __init__(self, folder):
                self.data = Pictures(folder)
                self.loader = DataLoader(self.data)

        class Pictures:
            def __init__(self, folder):
                self.transform = RandomCrop(32)

            def __getitem__(self, index):
                return self.transform(index)
        """
    )
    loader = next(iter(parse_all({"train.py": text})["train.py"].calls_named("DataLoader")))
    draw = sample_draw({"train.py": text}, "train.py", (loader.args[0].value,), (), None)
    assert draw is not None
    assert draw.code == "RandomCrop"


def test_a_name_that_only_methods_have_has_no_file_parsed() -> None:
    sources = parse_all({"net.py": "class Net:\n    def forward(self, x):\n        def inner():\n            pass\n"})
    definitions = Definitions(sources)
    assert definitions.free("forward") == []
    assert "module" not in vars(sources["net.py"])
    assert [path for path, _ in definitions.free("inner")] == ["net.py"]
    assert [path for path, _ in definitions.free("Net")] == ["net.py"]


def test_a_function_is_followed_that_is_imported_by_another_name_and_not_others_of_its_own() -> None:
    build = """
        from data import Samples

        def build(path):
            return Samples({find}(path))

        def {find}(path):
            return path
        """
    found = followed(
        data=SAMPLES,
        images=build.format(find="find_images"),
        models=build.format(find="find_models"),
        train="""
            from images import build as build_images
            from models import build as build_models

            loader = DataLoader(build_images("."))
            """,
    )
    assert "find_images" in found
    assert "find_models" not in found
