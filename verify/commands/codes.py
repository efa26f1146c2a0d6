"""The exit codes of the commands."""

from __future__ import annotations

OK, FAILED, NOTHING, INTERRUPTED = 0, 1, 3, 130
"""As expected; a failure or regression; nothing measured or the environment lacks what was asked; interrupted.
(2 is wrong usage.)"""
