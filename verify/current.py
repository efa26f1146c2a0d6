"""Whether a record is of the present sources: of those that made it, not of all.

A campaign on a GPU takes hours, and a kernel is changed in minutes: what was judged of the others stays judged.
"""

from __future__ import annotations

from linattest.verify import registry
from linattest.verify.environment import source_hash
from linattest.verify.records import Record
from linattest.verify.sources import PACKAGE, hash_of
from linattest.verify.spec import Variant

JUDGE = f"{PACKAGE}.verify.examine"


def sources(variant: Variant) -> str:
    """Hash of what a verdict on a variant of ours depends on: the judge, every operator's forms that are no kernels
    (properties compare with other operators), and the variant's own module, with all that these import of ours."""
    forms = {v.function.partition(":")[0] for o in registry.OPERATORS for v in o.variants if not v.kernel}
    made_of = {x for x in (*forms, variant.function.partition(":")[0]) if x.startswith(f"{PACKAGE}.")}
    return hash_of(JUDGE, *sorted(made_of))


def current(record: Record) -> bool:
    """Whether the present sources would judge again what the record's did; of a user's function, whether all of ours
    are the same."""
    if not record.sources:
        return record.environment is not None and record.environment.source_hash == source_hash()
    operator = registry.BY_NAME.get(record.case.operator)
    variant = operator and next((v for v in operator.variants if v.name == record.variant), None)
    return variant is not None and record.sources == sources(variant)
