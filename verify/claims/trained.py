"""Claims that need training: the verdict of a committed result, by the rules that the recipe has now.

`linattest experiment NAME --device cuda --output verify/data/experiments/NAME.json` makes the record. Its word is not
taken: the recipe's rules judge its runs anew. A record of another recipe, or of a quick form, is none.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from linattest.verify.claims.verdicts import Evidence, Verdict, reason, untested
from linattest.verify.environment import ROOT
from linattest.verify.experiments import recipe as recipes
from linattest.verify.experiments import results
from linattest.verify.experiments.judging import judge, states

FOLDER = ROOT / "verify" / "data" / "experiments"


def judged(name: str, folder: Path | None = None) -> Verdict:
    """The verdict of the committed result of a recipe, "untested" without one.

    Raises:
        RecipeError: there is no such recipe.
        ValueError: the file is no result.
    """
    recipe = recipes.read(name)
    path = (folder or FOLDER) / f"{name}.json"
    if not path.is_file():
        return untested(f"not yet run: linattest experiment {name} --device cuda")
    found = results.read(path)
    if found.form != "full" or found.recipe != recipe:
        return untested(f"{path.name} is of another recipe than there is now, or of its quick form: run it again")
    verdict = judge(recipe, found.runs, found.series)
    return msgspec.structs.replace(verdict, evidence=(_made(found), *_told(verdict, recipe, found, path.name)))


def _told(verdict: Verdict, recipe: recipes.Recipe, found: results.Result, name: str) -> list[Evidence]:
    """The evidence of a verdict, each rule's with the word that it came to: all of it, also what did not hold, stands
    for the word that the rules gave together."""
    words = [f"{results.WORDS[state]}: " for state in states(recipe, found.runs, found.series)]
    whys = len(verdict.evidence) - len(words)  # why there is no verdict comes before the rules
    return [
        msgspec.structs.replace(e, where=f"verify/data/experiments/{name}", text=word + e.text, stands=True)
        for e, word in zip(verdict.evidence, [*[""] * whys, *words], strict=True)
    ]


def _made(found: results.Result) -> Evidence:
    """When and by what a result was made."""
    made = found.environment
    read = f"; text: {found.text.name}, sha256 {found.text.sha256}" if found.text else ""
    return reason(
        f"measured {found.date} on {made.device}, {found.seeds} seeds: commit {made.commit}, torch {made.torch}{read}"
    )


# --- checks of rows ----------------------------------------------------------------------------------------------


def mqar_capacity() -> Verdict:
    """MQAR with 24 pairs: VLA, linear, softmax, DeltaNet."""
    return judged("vla.mqar-capacity")


def mqar_deltanet_fair() -> Verdict:
    """DeltaNet as published, with and without a short convolution."""
    return judged("vla.mqar-deltanet-fair")


def mqar_budget() -> Verdict:
    """Ten times the steps, three learning rates."""
    return judged("vla.mqar-budget")


def mqar_length() -> Verdict:
    """8 pairs up to T = 512."""
    return judged("vla.mqar-length")


def mqar_overload() -> Verdict:
    """More pairs than d_h."""
    return judged("vla.mqar-overload")


def copy() -> Verdict:
    """The copy task."""
    return judged("vla.copy")


def adaptive_mqar() -> Verdict:
    """MQAR with 32 pairs: level weights linear, MLP softplus, MLP softmax."""
    return judged("lam.mqar")


def adaptive_mqar_length() -> Verdict:
    """The same at twice the trained length."""
    return judged("lam.mqar-length")


def variance() -> Verdict:
    """Spread over seeds."""
    return judged("lam.variance")


def selective_copy() -> Verdict:
    """Selective copying at T = 1024."""
    return judged("lam.selective-copy")


def heatmap() -> Verdict:
    """Level weights by role of the token."""
    return judged("lam.heatmap")


def sniah_small() -> Verdict:
    """Passkeys at one to four times the trained length, CCQ on and off."""
    return judged("ccq.sniah-small")


def ccq_lm_small() -> Verdict:
    """Byte perplexity of a text at one to five times the trained length, CCQ on and off."""
    return judged("ccq.lm-small")


def lam_lm_small() -> Verdict:
    """Byte perplexity of a text: level weights linear, MLP softplus, MLP softmax, fixed."""
    return judged("lam.lm-small")
