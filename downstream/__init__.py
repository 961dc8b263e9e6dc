"""What the downstream experiments need beside mmdet and mmseg: importing it registers everything.

Configs carry ``custom_imports = dict(imports=['backbones', 'downstream'])``; those that lie
elsewhere inherit the project's with ``_base_ = __import__('downstream').inherit(FILE, ...)``.
"""
from . import quiet  # noqa: F401  before all that imports mmdet and mmseg

# isort: split
from . import data, heads, scoring, training  # noqa: F401
from .experiments import inherit

__all__ = ['Predictor', 'inherit']


def __getattr__(name):
    if name == 'Predictor':  # with drawing and all: only for those who ask for it
        from .looking.predictor import Predictor
        return Predictor
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
