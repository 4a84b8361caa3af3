"""Lists of wrong and fair forms: none of the wrong ones earns anything, none of the fair ones is refused."""

from __future__ import annotations

import pytest
from answer_forms import Form, fair_forms, wrong_forms

from marft.envs.grading import grade

WRONG, FAIR = wrong_forms(), fair_forms()


def kinds(forms: list[Form]) -> list[str]:
    return list(dict.fromkeys(form.kind for form in forms))


@pytest.mark.parametrize("forms", [WRONG, FAIR])
def test_the_lists_are_as_long_as_promised(forms: list[Form]) -> None:
    assert len({(form.message, form.gold, form.prompt) for form in forms}) >= 500
    assert len(kinds(forms)) >= 80


@pytest.mark.parametrize("kind", kinds(WRONG))
def test_wrong_forms_earn_nothing(kind: str) -> None:
    rewarded = [f for f in WRONG if f.kind == kind and grade(f.message, f.gold, f.prompt)]
    assert rewarded == []


@pytest.mark.parametrize("kind", kinds(FAIR))
def test_fair_forms_are_right(kind: str) -> None:
    refused = [f for f in FAIR if f.kind == kind and not grade(f.message, f.gold, f.prompt)]
    assert refused == []
