"""Recipes: what is trained or simulated for a claim of the papers, and the rule that makes its verdict.

One TOML file a claim, in ``recipes/``, written before the run. A *rule* is one condition; the verdict is

    supported        every condition holds: whole intervals lie within the limits
    not reproduced   one does not: a whole interval lies outside
    untested         none fails, but an interval reaches over a limit; or the quick form, which checks machinery only

A recipe whose conditions an untrained model would meet (none asks that something be reached) is refused. Its byte
perplexity is about 256, so a perplexity is asked for with ``at_most``, half of that or less.

``quick`` is a table of the same shape as the recipe, laid over it: small sizes that end in seconds. ``like`` names
another recipe, over which all of a file is laid (tasks and tests as a whole): runs that both have are trained once.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from linattest.verify.environment import ROOT
from linattest.verify.experiments.tasks import Task, Text

FOLDER = ROOT / "verify" / "experiments" / "recipes"
LEAST_SEEDS = 3
"""A verdict on fewer seeds is none."""

Measure = Literal["accuracy", "exact", "nats", "perplexity", "role_information", "input_spread", "series"]


class RecipeError(ValueError):
    """A recipe that cannot be read; the message names the file, the key and what was expected."""


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


def _positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value}, expected more than 0")


class Shape(_Strict, frozen=True, kw_only=True):
    """What every model of a recipe has. ``positions``: learned ones, as many as the longest row has tokens."""

    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    mlp_ratio: float = 2.0
    norm: Literal["layer", "rms"] = "layer"
    positions: bool = True
    options: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _positive(num_heads=self.num_heads)  # what is divided by it comes before a model's own checks


class Model(_Strict, frozen=True, kw_only=True):
    """A layer of ``impls.lm`` with its options. ``variant``: see ``models``; ``freeze``: patterns of parameters."""

    name: str
    layer: str
    options: dict[str, Any] = {}
    variant: Literal["", "channel_gate", "reinitialised_levels"] = ""
    freeze: tuple[str, ...] = ()
    about: str = ""


class Training(_Strict, frozen=True, kw_only=True):
    """The budget, the same for all models. ``sequences``: so many rows, over and over; without, new ones every step.

    ``stop_at``: end a run at an evaluation with this accuracy on validation rows; the step is recorded.
    """

    steps: int
    batch: int = 64
    learning_rates: tuple[float, ...] = (3e-4,)
    optimiser: Literal["adamw", "adam"] = "adamw"
    weight_decay: float = 0.01
    clip: float | None = 1.0
    warmup: int = 0
    schedule: Literal["constant", "cosine"] = "cosine"
    sequences: int | None = None
    evaluate_every: int = 200
    validation_rows: int = 256
    test_rows: int = 1024
    stop_at: float | None = None

    def __post_init__(self) -> None:
        names = ("batch", "clip", "sequences", "evaluate_every", "validation_rows", "test_rows", "stop_at")
        _positive(**{name: getattr(self, name) for name in names})
        if self.steps < 0 or self.warmup < 0:
            raise ValueError(f"steps is {self.steps} and warmup {self.warmup}, expected at least 0")
        if not self.learning_rates or min(self.learning_rates) <= 0:
            raise ValueError(f"learning_rates is {list(self.learning_rates)}, expected one or more, each more than 0")
        if self.sequences is not None and self.sequences < self.batch:
            raise ValueError(f"sequences is {self.sequences}, expected at least batch = {self.batch}")


class Rule(_Strict, frozen=True, kw_only=True):
    """One condition: a figure of ``model`` (less that of ``minus``, seed by seed) is within the limits.

    ``over``: "seeds", the Wilson interval of every seed's accuracy; "mean", the t-interval of the mean over seeds;
    "spread", the chi-squared interval of the standard deviation over seeds; "another", the interval in which one more
    seed falls: it must have the paper's figure (``paper``) in it.
    ``measure``: "accuracy", "exact" (whole rows), "nats" (mean negative log likelihood of what is asked), "perplexity"
    (its exponential, by seed), those of ``probes``, or "series".
    ``task`` is what it was trained on (default: the recipe's first), ``test`` what it is tried on (default: the same).
    In a simulation ``model`` and ``minus`` are series. ``paper``: the figure said there, shown beside ours.
    """

    model: str
    minus: str = ""
    task: str = ""
    test: str = ""
    measure: Measure = "accuracy"
    over: Literal["seeds", "mean", "spread", "another"] = "seeds"
    at_least: float | None = None
    at_most: float | None = None
    paper: float | None = None

    def __post_init__(self) -> None:
        limited = self.at_least is not None or self.at_most is not None
        if self.over == "another":
            if limited or self.paper is None:
                raise ValueError(f'a rule on {self.model!r} has over = "another", expected paper and no limit')
        elif not limited:
            raise ValueError(f"a rule on {self.model!r} has no limit, expected at_least or at_most")
        if self.over == "seeds" and (self.minus or self.measure not in ("accuracy", "exact")):
            raise ValueError(
                f'a rule on {self.model!r} has over = "seeds", expected "mean": a difference, or what is no '
                "share of answers, has no Wilson interval"
            )

    def asks(self, vocab_size: int) -> bool:
        """Whether a model that learned nothing, and guesses among so many tokens, could break it."""
        least = -math.inf if self.at_least is None else self.at_least
        most = math.inf if self.at_most is None else self.at_most
        if self.measure not in ("nats", "perplexity"):
            return least > 0
        if self.minus:  # one that is less than another, either way round
            return least > 0 or most < 0
        return most <= (vocab_size / 2 if self.measure == "perplexity" else math.log(vocab_size / 2))


class _Recipe(_Strict, frozen=True, kw_only=True, tag_field="kind"):
    """What both kinds have: the claim's id (the file's name), words, how many seeds by default, the rules."""

    claim: str
    about: str
    rules: tuple[Rule, ...]
    seeds: int = LEAST_SEEDS
    scope: str = ""

    def check(self, vocab_size: int = 2) -> None:
        """Raise ``ValueError`` where no rule could be broken by a model that learned nothing."""
        _positive(seeds=self.seeds)
        if not any(rule.asks(vocab_size) for rule in self.rules):
            raise ValueError(
                "no rule has at_least above 0 (or at_most, of a perplexity well below vocab_size, of nats below its "
                "logarithm): a model that learned nothing would meet the others"
            )

    def check_name(self, key: str, given: str, known: list[str]) -> None:
        """Raise ``ValueError`` for a name that the recipe does not have."""
        if given and given not in known:
            raise ValueError(f"rules: {key} is {given!r}, expected one of {', '.join(known)}")


class Trained(_Recipe, frozen=True, kw_only=True, tag="training"):
    """Every model, trained on every task at every learning rate with every seed, then tried on the tests.

    ``tests``: further tasks that each is tried on, such as longer rows. ``probe``: level weights are looked at too.
    """

    shape: Shape = Shape()
    tasks: dict[str, Task]
    tests: dict[str, Task] = {}
    models: tuple[Model, ...]
    training: Training
    probe: bool = False

    def __post_init__(self) -> None:
        self.check(min((task.vocab_size for task in self.tasks.values()), default=2))
        names = [model.name for model in self.models]
        if not names or len(set(names)) < len(names) or not self.tasks:
            raise ValueError(f"models are {names} and tasks {list(self.tasks)}, expected at least one each, names once")
        if both := sorted(set(self.tasks) & set(self.tests)):
            raise ValueError(f"tests: {both[0]!r} is a task already, expected another name")
        if len({task.vocab_size for task in (*self.tasks.values(), *self.tests.values())}) > 1:
            raise ValueError("vocab_size differs between tasks, expected one for all: the models are the same")
        for rule in self.rules:
            for key, given in (("model", rule.model), ("minus", rule.minus)):
                self.check_name(key, given, names)
            self.check_name("task", rule.task, list(self.tasks))
            self.check_name("test", rule.test, [rule.task or next(iter(self.tasks)), *self.tests])
            if rule.measure in ("role_information", "input_spread", "series") and not self.probe:
                raise ValueError(f"rules: measure is {rule.measure!r}, expected another without probe = true")

    @property
    def longest(self) -> int:
        """T of the longest rows."""
        return max(task.tokens for task in (*self.tasks.values(), *self.tests.values()))

    @property
    def reads_text(self) -> bool:
        """Whether rows come of a text."""
        return any(isinstance(task, Text) for task in (*self.tasks.values(), *self.tests.values()))


class Simulated(_Recipe, frozen=True, kw_only=True, tag="simulation"):
    """Nothing is trained: a function of ``simulations`` gives named series, one number a seed."""

    function: Literal["needle_margin", "state_norms", "recall"]
    arguments: dict[str, Any] = {}

    def __post_init__(self) -> None:
        self.check()
        for rule in self.rules:
            if rule.over == "seeds" or rule.measure != "series":
                raise ValueError(
                    f"a rule on {rule.model!r} has over = {rule.over!r} and measure = {rule.measure!r}, "
                    'expected "mean" or "another", and "series": this is a simulation'
                )


Recipe = Trained | Simulated


# --- reading -----------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(name: str, *, quick: bool = False) -> Recipe:
    """A recipe by its claim, or its quick form.

    Raises:
        RecipeError: there is none of that name, or it is not one.
    """
    if name not in names():
        raise RecipeError(f"no recipe {name!r}; known: {', '.join(names())}")
    return parse(_text(name), f"{name}.toml", quick=quick)


def _text(name: str) -> str:
    return (FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def parse(text: str, where: str, *, quick: bool = False) -> Recipe:
    """The recipe of a text. Raises ``RecipeError`` naming ``where``, the key and what was expected."""
    try:
        table = tomllib.loads(text)
        if (base := table.pop("like", None)) is not None:
            if base not in names():
                raise ValueError(f"like is {base!r}, expected one of {', '.join(names())}")
            table = laid_over(tomllib.loads(_text(base)), table, whole=("tasks", "tests"))
        small = table.pop("quick", None)
        if not isinstance(small, dict):
            raise ValueError("has no [quick], expected a table of what is smaller in the quick form")
        quickened = msgspec.convert(laid_over(table, small), Recipe)  # read always: a mistake in it shows at once
        full = msgspec.convert(table, Recipe)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError) as error:
        raise RecipeError(f"{where}: {error}") from error
    if full.claim != where.removesuffix(".toml"):
        raise RecipeError(f"{where}: claim is {full.claim!r}, expected the file's name")
    return quickened if quick else full


def laid_over(table: Mapping[str, Any], above: Mapping[str, Any], whole: tuple[str, ...] = ()) -> dict[str, Any]:
    """``table`` with the values of ``above``, table by table; tables named in ``whole`` are replaced as they are."""
    merged = dict(table)
    for key, value in above.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict) and key not in whole:
            value = laid_over(below, value, whole)
        merged[key] = value
    return merged
