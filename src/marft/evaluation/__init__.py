"""Evaluation: how well a team does on tasks it has never seen, with intervals that say how sure that is."""

from marft.evaluation.failures import Tolerance
from marft.evaluation.formulas import wilson
from marft.evaluation.held_out import evaluate, summarise
from marft.evaluation.settings import EvalSettings, eval_settings, with_settings

__all__ = ["EvalSettings", "Tolerance", "eval_settings", "evaluate", "summarise", "wilson", "with_settings"]
