"""Exact arithmetic for scenario files: numbers, names, + - * / ( ), min and max. Nothing else parses."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_LONGEST = 300
_OPERATORS: Mapping[type, Callable[[Any, Any], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: Mapping[str, Callable[..., Fraction]] = {"min": min, "max": max}


@dataclass(frozen=True)
class Expression:
    """One expression of a scenario file.

    >>> Expression("max(0, Paid - Paid * Taken / Total)").value({"Paid": 100, "Taken": 1, "Total": 3})
    Fraction(200, 3)

    Raises ValueError that says what is not allowed, for any other text.
    """

    text: str
    _tree: ast.expr = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.text) > _LONGEST:
            raise ValueError(f"a formula has at most {_LONGEST} characters")
        try:
            tree = ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(
                f"{self.text!r} is not a formula; write it with names, numbers, + - * / ( ) min max"
            ) from error
        _check(tree)
        object.__setattr__(self, "_tree", tree)

    @property
    def names(self) -> frozenset[str]:
        """Variables that it reads."""
        found = (node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name))
        return frozenset(found) - _FUNCTIONS.keys()

    @property
    def divisor_names(self) -> frozenset[str]:
        """Variables in its divisors.

        >>> sorted(Expression("Paid * Taken / (Total - Lost)").divisor_names)
        ['Lost', 'Total']
        """
        operations = (node for node in ast.walk(self._tree) if isinstance(node, ast.BinOp))
        divisors = [node.right for node in operations if isinstance(node.op, ast.Div)]
        found = (node.id for divisor in divisors for node in ast.walk(divisor) if isinstance(node, ast.Name))
        return frozenset(found) - _FUNCTIONS.keys()

    def value(self, values: Mapping[str, object]) -> Fraction:
        """Evaluate it. Raise KeyError for a variable without a value, and ZeroDivisionError."""
        return _value(self._tree, values)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_read)


def _read(given: Any) -> Expression:
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise ValueError("a formula is a whole number or a text")
    return Expression(str(given))


def _check(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return
        case ast.Name(id=name) if name not in _FUNCTIONS:
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _check(left)
            _check(right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _check(operand)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS and len(arguments) > 1:
            for argument in arguments:
                _check(argument)
        case _:
            raise ValueError(
                f"{ast.unparse(node)!r} is not allowed in a formula; use names, numbers, + - * / ( ) min max"
            )


def _value(node: ast.expr, values: Mapping[str, object]) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.Name(id=name):
            return Fraction(str(values[name]))
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(operand=operand):
            return -_value(operand, values)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_value(argument, values) for argument in arguments))
    raise AssertionError(ast.dump(node))
