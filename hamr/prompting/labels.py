"""Labels of a verdict, their values, and the words that introduce one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Label = Literal["yes", "part", "no"]

LABEL_VALUES: Mapping[Label, float] = {"yes": 1.0, "part": 0.5, "no": 0.0}

VERDICT_WORDS = ("verdict", "judge_result", "judge result", "结论", "判定结果", "判断结果")
"""Words before a verdict. Templates neutralise the same words in untrusted text."""
