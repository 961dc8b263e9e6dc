"""One training step and one test image of an experiment, at a reduced size: does it run here?

Images come from COCO_ROOT and ADE20K_ROOT where those have them, else they are generated. A
training step must give finite losses, and a finite gradient to every trainable parameter (several
processes cannot train what gets none).
"""
import os
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.utils import import_modules_from_strings

from ..experiments import CONFIGS
from ..training.launching import fit_precision

# A data set's type: where the real one is, what it must have, and the config of the generated one.
DATA = {
    'CocoDataset': ('COCO_ROOT', 'annotations/instances_train2017.json', 'demo_coco.py'),
    'CocoPanopticDataset': ('COCO_ROOT', 'annotations/panoptic_train2017.json', 'demo_panoptic.py'),
    'ADE20KDataset': ('ADE20K_ROOT', 'images', 'demo_ade20k.py'),
}
# What transforms and preprocessors call a size in pixels.
SIZES = 'scale', 'scales', 'crop_size', 'max_size', 'size'


def shrink(node, factor: float):
    """A config with every size in it (Resize's, RandomCrop's, ...) multiplied by ``factor``."""
    if isinstance(node, dict):
        return {key: resized(value, factor) if key in SIZES
                else shrink(value, factor) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [shrink(value, factor) for value in node]
    return node


def resized(sizes, factor: float):
    """A size, a pair of sizes or a list of such pairs, multiplied."""
    if isinstance(sizes, (list, tuple)):
        return type(sizes)(resized(size, factor) for size in sizes)
    return round(sizes * factor)


def samples(cfg: Config, loader: str, count: int, factor: float) -> list:
    """The first images of a data loader's data set, through its own pipeline."""
    dataset = cfg[loader].dataset
    variable, needed, generated = DATA.get(dataset.type, ('', '', None))
    if generated and not (Path(os.environ.get(variable) or os.devnull) / needed).exists():
        demo = Config.fromfile(CONFIGS / '_base_' / 'datasets' / generated)
        dataset = {**demo[loader].dataset, 'pipeline': dataset.pipeline}
    dataset = DATASETS.build({**dataset, 'pipeline': shrink(dataset['pipeline'], factor)})
    return [dataset[i] for i in range(count)]


def check_experiment(config: Path, factor: float = 0.25) -> str:
    """Build an experiment, do one training step and one test image.

    Args:
        config: the experiment's file.
        factor: what every image size in its pipelines is multiplied by.

    Returns:
        What was found, in words.

    Raises:
        AssertionError: a loss or gradient that is not finite or is missing, or no prediction.
    """
    cfg = Config.fromfile(config, import_custom_modules=False)
    import_modules_from_strings(**cfg.custom_imports)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    if 'Pretrained' in str(cfg.model.backbone.get('init_cfg')):
        cfg.model.backbone.init_cfg = None  # random weights will do
    cfg.model.data_preprocessor = shrink(cfg.model.data_preprocessor, factor)
    model = MODELS.build(cfg.model)
    model.init_weights()
    fit_precision(cfg)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)

    model.train()
    batch = model.data_preprocessor(pseudo_collate(samples(cfg, 'train_dataloader', 2, factor)),
                                    training=True)
    loss, losses = model.parse_losses(model(**batch, mode='loss'))
    assert loss.isfinite(), f'the losses are {losses}'
    optimizer.backward(loss)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, f'{name} gets no gradient'
            assert parameter.grad.isfinite().all(), f'the gradient of {name} is not finite'
    optimizer.step()

    model.eval()
    with torch.no_grad():
        result, = model.test_step(pseudo_collate(samples(cfg, 'test_dataloader', 1, factor)))
    if cfg.default_scope == 'mmseg':
        assert tuple(result.pred_sem_seg.shape) == tuple(result.ori_shape), 'a map of another size'
        found = f'{result.pred_sem_seg.data.unique().numel()} classes'
    else:
        assert result.pred_instances.bboxes.isfinite().all(), 'boxes that are not finite'
        found = f'{len(result.pred_instances)} boxes'
        if 'pred_panoptic_seg' in result:
            segments = result.pred_panoptic_seg.sem_seg
            assert tuple(segments.shape[1:]) == tuple(result.ori_shape), 'a map of another size'
            found += f', {segments.unique().numel()} segments'
    params = sum(p.numel() for p in model.parameters()) / 1e6
    return f'{params:6.1f} M parameters, loss {loss.item():8.3f}, {found}'
