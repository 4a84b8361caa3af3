"""Silence while transformers loads: what goes wrong is an exception, and the rest is not the user's business."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import transformers.utils.logging


@contextmanager
def silence_transformers() -> Iterator[None]:
    """No progress bars, and no log lines below an error. What the caller had set is put back."""
    loggers = [logging.getLogger("transformers"), logging.getLogger("huggingface_hub")]
    levels = [logger.level for logger in loggers]
    progress: Any = transformers.utils.logging  # partly untyped
    shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if shown:
            progress.enable_progress_bar()
