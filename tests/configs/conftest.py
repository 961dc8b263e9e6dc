"""What the tests of configs share."""
from pathlib import Path

import pytest
import torch
from mmengine import Config
from mmengine.registry import MODELS

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
UPSTREAM = 'PyramidVisionTransformer', 'SwinTransformer', 'mmdet.SwinTransformer'


@pytest.fixture(scope='session')
def load():
    """Reads an experiment's config, by its name."""
    return lambda name: Config.fromfile(CONFIGS / f'{name}.py')


@pytest.fixture(scope='session')
def build(load):
    """Builds an experiment's model once, without storage: names and shapes take no time so."""
    models = {}

    def build_once(name):
        if name not in models:
            cfg = load(name)
            # Upstream's PVT and Swin read values while they are built.
            upstream = cfg.model.backbone.type in UPSTREAM
            with torch.device('cpu' if upstream else 'meta'):
                model = MODELS.build(dict(cfg.model, _scope_=cfg.default_scope))
            models[name] = model.to('meta')
        return models[name]

    return build_once
