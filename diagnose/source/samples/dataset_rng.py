"""Whether making a sample draws random numbers, and whether workers would each draw their own.

What a loader runs for a sample is followed from the dataset's `__getitem__` and the collate function through the
program's own functions and classes; what only builds the dataset (`__init__`, a function that returns one) may draw as
it likes. torch seeds the generators of Python, NumPy and torch anew in each worker, so a draw from one of those is
another number of the same kind there. A generator that the program keeps is another matter: each worker starts with a
copy of it, and all would draw the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.source.samples.sample_code import SampleCode
from diagnose.source.samples.sample_names import is_read
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.attributes import attribute_values, leaves
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import parse_all, per_program, per_source
from diagnose.source.tree.syntax import Source

_TRANSFORM = re.compile(
    r"Rand(?:om)?(?!State|Sampler|BatchSampler)[A-Z]\w*|\w*Jitter|\w*Augment\w*|AugMix|MixUp|CutMix|ElasticTransform"
)
"""Names of transforms, as in torchvision, whose every call draws a random number."""
_MAKERS = ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random", "torch.Generator")
_STILL_ONE = frozenset({"manual_seed", "set_state", "clone_state", "spawn", "jumped"})
"""Methods of a generator that return a generator; the others return what was drawn, or nothing to draw from."""
_NO_DRAW = {
    "random": {"Random", "SystemRandom", "seed", "getstate", "setstate"},
    "numpy.random": {
        *("default_rng", "Generator", "RandomState", "SeedSequence", "BitGenerator", "PCG64", "PCG64DXSM", "Philox"),
        *("MT19937", "SFC64", "seed", "get_state", "set_state"),
    },
}
_TORCH = frozenset(
    f"torch.{name}"
    for name in (
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli"),
        *("multinomial", "normal", "poisson"),
        *(f"nn.functional.{name}" for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")),
        *("nn.functional.feature_alpha_dropout", "nn.functional.gumbel_softmax", "nn.functional.rrelu", "dropout"),
    )
)
_METHODS = frozenset({"bernoulli", "multinomial", "sample", "rsample", "rvs"})
"""Methods of tensors, distributions and tables of data that draw from a generator of the process at each call."""
_GIVEN_A_SEED = ("generator", "random_state", "rng")
_LIBRARIES = ("albumentations.", "audiomentations.", "imgaug.", "kornia.augmentation.", "nlpaug.", "torch.nn.Dropout")
"""Libraries whose transforms draw at each call."""
_IN_PLACE = frozenset({"uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_", "log_normal_"})
_ENTROPY = frozenset({"random.SystemRandom", "os.urandom", "secrets.token_bytes", "secrets.randbelow"})
_SEEDS = frozenset({"random.seed", "numpy.random.seed", "torch.manual_seed", "torch.random.manual_seed"})
_OF_WORKER = re.compile(r"\bget_worker_info\b|\binitial_seed\b|\bgetpid\b|\burandom\b|\bworker_seed\b")


@dataclass(frozen=True, slots=True)
class Draw:
    """A random number that goes into a sample."""

    code: str
    """What draws it: `np.random.randint`, `RandomCrop`, `self.rng`."""
    line: int
    path: str
    copied: bool = False
    """Whether it comes from a generator of which every worker would have a copy in the same state."""

    @property
    def words(self) -> str:
        """Return what draws and where, for a sentence."""
        return f"`{self.code}`, {self.path}:{self.line}"


@per_program
def sample_draw(
    sources: Mapping[str, str],
    path: str,
    made_by: tuple[cst.CSTNode, ...],
    names: tuple[str, ...],
    init: cst.CSTNode | None,
) -> Draw | None:
    """The first draw that is found, one from a copied generator before all others; None where nothing shows one.

    `made_by` are the expressions in file `path` that make the dataset and the collate function, `names` the classes and
    functions that the run saw in their place, `init` the loader's `worker_init_fn`.
    """
    code = _code(sources, path, made_by, names)
    if code is None or any(code.seeds_itself()):
        return None  # what a sample draws follows from its index
    bodies = [*code.bodies_of(path, init)] if init is not None else []
    alike = code.seeded_alike(bodies)
    draws = [*code.draws(" ".join(code.sources[file].code(body) for file, body in bodies))]
    if draws and alike is not None:
        return alike
    return next((draw for draw in draws if draw.copied), draws[0] if draws else None)


@per_program
def draws_of_order(sources: Mapping[str, str], path: str, made_by: tuple[cst.CSTNode, ...]) -> Sequence[Draw]:
    """All draws of the code that chooses samples, whether or not it seeds itself; `made_by` make the sampler."""
    code = _code(sources, path, made_by, ())
    return tuple(code.draws("")) if code is not None else ()


def _code(sources: Mapping[str, str], path: str, made_by: Sequence[cst.CSTNode], names: Sequence[str]) -> _Code | None:
    code = _Code(parse_all(sources))
    if path not in code.sources:
        return None
    for node in made_by:
        code.builds(path, node)
        for file, value in attribute_values(code.sources, node):
            code.builds(file, value)
    for name in names:
        code.makes_samples_by(name)
    return code


class _Code(SampleCode):
    """Which of the code that a loader runs draws random numbers."""

    def seeds_itself(self) -> Iterator[bool]:
        """Whether code that makes a sample seeds a global generator first."""
        for node, path in self.sampling.items():
            yield from (bool(_SEEDS & self.sources[path].names(call.func)) for call in self.calls(path, node))

    def draws(self, init: str) -> Iterator[Draw]:
        """All that is seen to draw; `init` is the program's code that sets up each worker."""
        own, around = {*self._kept_generators()}, {*self._generators_around()}
        told = any(_OF_WORKER.search(self.sources[path].code(node)) for node, path in self.sampling.items())
        for node, path in self.sampling.items():
            source = self.sources[path]
            for call in self.calls(path, node):
                if _draws(source, call) or self._is_random_transform(path, call) or self._samples_anew(path, call):
                    yield Draw(source.code(call.func), source.lines_of(call)[0], path)
            yield from self._handed_functions(path, node)
            for read in source.walk(node, cst.Attribute, cst.Name):
                if not isinstance(read, cst.Attribute | cst.Name):
                    continue
                held = source.code(read)
                nested = any((path, held, above) in around for above in source.ancestors(read))
                if nested or (path, held) in own:
                    apart = told or re.search(rf"\bdataset\b|\b{held.rpartition('.')[2]}\b", init) is not None
                    yield Draw(held, source.lines_of(read)[0], path, copied=not apart)
        for made, path in self.building.items():
            for call in self.calls(path, made):
                if self._is_random_transform(path, call):
                    yield Draw(call_name(call), self.sources[path].lines_of(call)[0], path)
            yield from self._handed_functions(path, made)

    def bodies_of(self, path: str, init: cst.CSTNode) -> Iterator[tuple[str, cst.CSTNode]]:
        """The program's own code that a `worker_init_fn` runs, with the file."""
        source = self.sources[path]
        if isinstance(init, cst.Lambda):
            yield path, init
        for name in dict.fromkeys(each.value for each in source.every(cst.Name, init)):
            yield from self.defined.named(name)

    def seeded_alike(self, bodies: Sequence[tuple[str, cst.CSTNode]]) -> Draw | None:
        """The seed that a `worker_init_fn` of the program's gives all workers, where it is the same for all."""
        for file, body in bodies:
            its, text = self.sources[file], self.sources[file].code(body)
            parameters = [param.name.value for param in body.params.params] if hasattr(body, "params") else []
            told = any(len(re.findall(rf"\b{name}\b", text)) > 1 for name in parameters)
            seeds = [call for call in self.calls(file, body) if _SEEDS & its.names(call.func)]
            if seeds and not told and _OF_WORKER.search(text) is None:
                return Draw(its.code(seeds[0]), its.lines_of(seeds[0])[0], file, copied=True)
        return None

    def _handed_functions(self, path: str, below: cst.CSTNode) -> Iterator[Draw]:
        """Functions that draw, and modules of them, which code takes as values: `pick = random.choice`."""
        source = self.sources[path]
        for node in source.walk(below, cst.Attribute, cst.Name):
            above = source.parent(node)
            whole = not isinstance(above, cst.Attribute | cst.ImportAlias)
            called = isinstance(above, cst.Call) and above.func is node
            if not whole or not isinstance(node, cst.Attribute | cst.Name):
                continue
            if (not called and _is_random(source, node)) or any(
                _is_random(self.sources[file], value) for file, value in self._stands_for(path, node)
            ):
                yield Draw(source.code(node), source.lines_of(node)[0], path)

    def _stands_for(self, path: str, node: cst.Attribute | cst.Name) -> Iterator[tuple[str, cst.BaseExpression]]:
        """Yield what a variable is bound to where samples read it, or an attribute of it: `rng` of `rng.normal`."""
        root: cst.BaseExpression = node
        while isinstance(root, cst.Attribute):
            root = root.value
        if isinstance(root, cst.Name) and is_read(self.sources[path], root):
            yield from self.values(path, root)

    def _samples_anew(self, path: str, call: cst.Call) -> bool:
        """Whether a call such as `distribution.sample()` or `table.sample(3)` draws with no seed of its own."""
        name = call_name(call)
        if name not in _METHODS or not isinstance(call.func, cst.Attribute) or name in self.defined:
            return False
        owner = call.func.value
        made = [*self._stands_for(path, owner)] if isinstance(owner, cst.Name) else [(path, owner)]
        makers = (self.sources[file].names(each.func) for file, value in made for each in self.calls(file, value))
        if any(not names.isdisjoint(_MAKERS) for names in makers):
            return False  # a generator made for this sample
        return all(argument(call, given) is None for given in _GIVEN_A_SEED)

    def _generators_around(self) -> Iterator[tuple[str, str, cst.CSTNode]]:
        """File, name and function of each generator that a function binds for the functions in it, or by default."""
        for path, source in self.sources.items():
            inner = {above for each in self.sampling if self.sampling[each] == path for above in source.ancestors(each)}
            for function in (each for each in inner if isinstance(each, cst.FunctionDef) and each not in self.sampling):
                for assign in source.walk(function, cst.Assign, cst.AnnAssign):
                    if not isinstance(assign, cst.Assign | cst.AnnAssign) or assign.value is None:
                        continue
                    if source.inside(assign, cst.FunctionDef) is function and self._makes_one(path, assign.value):
                        yield from ((path, source.code(each), function) for each in _targets(assign))
            for sampling in (each for each in self.sampling if self.sampling[each] == path):
                for param in source.every(cst.Param, sampling.params):
                    if param.default is not None and self._makes_one(path, param.default):
                        yield path, param.name.value, sampling

    def _kept_generators(self) -> Iterator[tuple[str, str]]:
        """The file and the code of what holds a generator from one sample to the next: `self.rng`, `RNG`."""
        building = set(self.building.values())
        for path, source in self.sources.items():
            if path not in building and not _new_generators(source):
                continue
            for assign in source.walk(None, cst.Assign, cst.AnnAssign):
                if not isinstance(assign, cst.Assign | cst.AnnAssign) or assign.value is None:
                    continue
                scope = source.inside(assign, cst.FunctionDef)
                if (scope is not None and scope in self.sampling) or not self._makes_one(path, assign.value):
                    continue
                for target in _targets(assign):
                    if scope is None or isinstance(target, cst.Attribute):
                        yield path, source.code(target)

    def _makes_one(self, path: str, value: cst.BaseExpression) -> bool:
        """Whether a value is made with a generator, or is one that is passed in."""
        scope = self.sources[path].inside(value, cst.FunctionDef)
        follows = scope in self.building  # the others are many, and keep no generator for samples
        given = [*self.values(path, value)] if isinstance(value, cst.Name) and follows else []
        return any(makes_generator(self.sources[file], each) for file, each in [(path, value), *given])

    def _is_random_transform(self, path: str, call: cst.Call) -> bool:
        name = call_name(call)
        if any(each.startswith(_LIBRARIES) for each in self.sources[path].names(call.func)):
            return True
        return name == "get_params" or (_TRANSFORM.fullmatch(name) is not None and name not in self.defined)


@per_source
def _new_generators(source: Source) -> Sequence[int]:
    """Return where among a file's nodes new generators are made, of which more than numbers is left."""
    return [source.extent(call)[0] for call in source.calls_of(*_MAKERS) if not _is_used_up(source, call)]


def makes_generator(source: Source, node: cst.CSTNode) -> bool:
    """Whether an expression makes a generator."""
    made = _new_generators(source)
    first, end = source.extent(node) if made else (0, 0)
    return any(first <= at < end for at in made)


def _is_used_up(source: Source, made: cst.Call) -> bool:
    """Whether all that is left of a new generator are numbers: `default_rng(0).normal()`, `randn(generator=…)`."""
    node: cst.CSTNode = made
    while isinstance(node, cst.Call):
        above = source.parent(node)
        if isinstance(above, cst.Arg):
            taker = source.parent(above)
            return isinstance(taker, cst.Call) and bool(_TORCH & source.names(taker.func))
        called = source.parent(above) if isinstance(above, cst.Attribute) else None
        if not isinstance(above, cst.Attribute) or not isinstance(called, cst.Call) or called.func is not above:
            return False
        if above.attr.value not in _STILL_ONE:
            return True
        node = called
    return False


def _targets(assign: cst.Assign | cst.AnnAssign) -> Iterator[cst.BaseExpression]:
    """Yield what an assignment binds, also where it takes a tuple apart."""
    for target in [assign.target] if isinstance(assign, cst.AnnAssign) else [each.target for each in assign.targets]:
        yield from leaves(target)


def _draws(source: Source, call: cst.Call) -> bool:
    """Whether a call draws from a generator of the process, or from none that could be repeated."""
    if argument(call, "generator") is not None:
        return False
    if call_name(call) in _IN_PLACE and isinstance(call.func, cst.Attribute):
        return True
    made_unseeded = bool(source.names(call.func) & {*_MAKERS[:3]}) and not call.args
    return made_unseeded or _is_random(source, call.func)


def _is_random(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression stands for a function that draws, or for a module of them; what one has drawn does not."""
    if not isinstance(node, cst.Name | cst.Attribute):
        return False
    for name in source.names(node):
        module, _, last = name.rpartition(".")
        if module in _NO_DRAW and last not in _NO_DRAW[module]:
            return True
        if name in _TORCH or name in _ENTROPY:
            return True
    return not source.imported(node).isdisjoint(_NO_DRAW)
