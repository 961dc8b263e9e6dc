"""The config that a checkpoint records as text, read without running any of it."""
import ast
from typing import Any

LONGEST = 4_000_000  # characters; mmengine's text of the largest experiment here has 30 thousand


class Text(str):
    """What a config's text has where no plain value stands: an expression, as it is written."""


def read_config_text(text: Any) -> dict[str, Any] | None:
    """The entries of a config that mmengine wrote down (``Config.pretty_text``).

    mmengine's own way back, ``Config.fromstring``, runs the text as Python, which may be anybody's.

    Args:
        text: assignments of literals and of ``dict(name=value)``.

    Returns:
        The entries by name, with lists for tuples and a ``Text`` for what is no literal; None where
        there is no such text.
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        return None
    try:
        found = {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = value_of(node.value)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Dict):
                found.update(value_of(node.value))  # names that are no identifiers
        return found
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def value_of(node: ast.expr) -> Any:
    """The value of an expression, as ``read_config_text`` has it."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [value_of(item) for item in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {value_of(key): value_of(value)
                for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
        if not node.args and all(keyword.arg for keyword in node.keywords):
            return {keyword.arg: value_of(keyword.value) for keyword in node.keywords}
        if not node.keywords and [type(argument) for argument in node.args] == [ast.Dict]:
            return value_of(node.args[0])  # names that are no identifiers
    if isinstance(node, ast.Name) and node.id in ('inf', 'nan'):  # as str() writes them
        return float(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = value_of(node.operand)
        if isinstance(value, int | float):
            return -value
    return Text(ast.unparse(node))
