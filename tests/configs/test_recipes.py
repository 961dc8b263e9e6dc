"""Every experiment's recipe, as recipes.yml has it."""
import copy
from collections import Counter
from pathlib import Path

import pytest
from mmengine.optim import build_optim_wrapper
from ruamel.yaml import YAML

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / 'configs'
TABLE = YAML(typ='safe').load(HERE / 'recipes.yml')


def merge(base: dict, changes: dict) -> dict:
    """`base` with `changes`, key by key all the way down."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def rows():
    """(config, its whole row): what all have, its recipe's, its own."""
    for recipe in TABLE['recipes']:
        shared = {key: value for key, value in recipe.items()
                  if key not in ('recipe', 'source', 'experiments')}
        for name, own in recipe['experiments'].items():
            yield name, merge(merge(TABLE['all'], shared), own or {})


ROWS = list(rows())


def plain(node):
    """A part of a config as YAML has it."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [plain(value) for value in node]
    return node


def at(cfg, path: str):
    """The entry of this dotted path."""
    for key in path.split('.'):
        cfg = cfg[int(key) if isinstance(cfg, list) else key]
    return plain(cfg)


def transforms(pipeline) -> list[dict]:
    """A pipeline's, but for those that read and pack."""
    return [{key: value for key, value in plain(step).items() if key != 'backend_args'}
            for step in pipeline if not step['type'].startswith(('Load', 'Pack'))]


def precision(wrapper) -> str:
    if wrapper['type'] == 'OptimWrapper':
        return 'float32'
    assert wrapper['type'] == 'AmpOptimWrapper' and 'dtype' not in wrapper, wrapper
    return f'mixed, loss scale {wrapper["loss_scale"]}'


def optimizer(cfg, model) -> dict:
    """What is really built, on any machine: mixed precision asks for a GPU when it is."""
    wrapper = copy.deepcopy(cfg.optim_wrapper.to_dict())
    wrapper['type'] = 'OptimWrapper'
    wrapper.pop('loss_scale', None)
    built = build_optim_wrapper(model, wrapper).optimizer
    defaults = built.defaults
    return dict(
        type=type(built).__name__, lr=defaults['lr'], betas=list(defaults['betas']),
        decay=defaults['weight_decay'], tensors=tensors(built, model, defaults))


def tensors(built, model, defaults) -> dict:
    """How many tensors of each kind get which learning rate and decay.

    The kind is the layer's class, or the name of an embedding or of a parameter that is no weight
    or bias. Of decayed ones there is one number.
    """
    rates = {id(p): (group['lr'] / defaults['lr'], group['weight_decay'] / defaults['weight_decay'])
             for group in built.param_groups for p in group['params']}
    counts = Counter()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            kind = name.rstrip('0123456789')  # of PVT's pos_embed1 to 4
            if name in ('weight', 'bias'):
                kind = type(module).__name__
            if kind == 'Embedding':
                kind = path.rpartition('.')[2]
            if not parameter.requires_grad:
                counts['frozen'] += 1
                continue
            lr, decay = rates[id(parameter)]
            assert decay in (0, 1), f'{path}.{name}: {decay} of the weight decay'
            group = 'undecayed' if decay == 0 else 'decayed'
            if round(lr, 9) != 1:
                group += f' at {round(lr, 9)} lr'
            counts[group if decay else (group, kind)] += 1
    found = {}
    for key, count in sorted(counts.items(), key=str):
        if isinstance(key, tuple):
            found.setdefault(key[0], {})[key[1]] = count
        else:
            found[key] = count
    return found


def schedule(cfg) -> dict:
    """Length, steps, warm-up and polynomial decay."""
    by_epoch = cfg.train_cfg.type == 'EpochBasedTrainLoop'
    assert by_epoch or cfg.train_cfg.type == 'IterBasedTrainLoop'
    length = cfg.train_cfg.max_epochs if by_epoch else cfg.train_cfg.max_iters
    found = dict(length=f'{length} {"epochs" if by_epoch else "iterations"}')
    for part in plain(cfg.param_scheduler):
        kind = part.pop('type')
        assert part.pop('begin') == 0
        if kind == 'LinearLR':
            assert part.pop('by_epoch') is False
            found['warm_up'] = f'{part.pop("end")} iterations from {part.pop("start_factor")}'
        else:
            assert (part.pop('by_epoch'), part.pop('end')) == (by_epoch, length)
            if kind == 'MultiStepLR':
                found['steps'] = part.pop('milestones')
                assert part.pop('gamma') == 0.1
            else:
                assert kind == 'PolyLR'
                found['poly'] = f'power {part.pop("power")} to {part.pop("eta_min")}'
        assert not part, f'{kind}: {part}'
    return found


def batch(cfg) -> str:
    """GPUs x images a step; the rate is for that many."""
    images = cfg.train_dataloader.batch_size * cfg.optim_wrapper.get('accumulative_counts', 1)
    gpus, rest = divmod(cfg.auto_scale_lr.base_batch_size, images)
    return f'{gpus} x {images}' + f' + {rest}' * bool(rest)


def augmentation(cfg) -> str:
    """The name in the table of what is done with a training image."""
    done = transforms(cfg.train_dataloader.dataset.pipeline)
    names = [name for name, steps in TABLE['augmentations'].items() if steps == done]
    return names[0] if names else f'none in the table: {done}'


def test_size(cfg) -> list:
    resize, = transforms(cfg.test_dataloader.dataset.pipeline)
    assert resize.pop('type') == 'Resize' and resize.pop('keep_ratio')
    return resize.pop('scale')


test_size.__test__ = False


def multi_scale_test(cfg) -> list:
    """The short sides at which --tta looks at an image, each also flipped."""
    if 'tta_pipeline' not in cfg:
        return []
    resizes, flips, *_ = plain(cfg.tta_pipeline[-1]['transforms'])
    assert flips == [dict(type='RandomFlip', prob=prob) for prob in (0., 1.)]
    return [min(resize['scale']) for resize in resizes]


def drop_path(model) -> float:
    """Of the last block."""
    return round(max((getattr(module, 'drop_prob', None) or 0. for module in
                      model.backbone.modules() if type(module).__name__ == 'DropPath'),
                     default=0.), 6)


def recipe(cfg, model, row) -> dict:
    """All that the table says, of a config."""
    return dict(
        optimizer=optimizer(cfg, model),
        clip=plain(cfg.optim_wrapper.get('clip_grad')),
        precision=precision(cfg.optim_wrapper),
        batch=batch(cfg),
        schedule=schedule(cfg),
        augmentation=augmentation(cfg),
        filter=plain(cfg.train_dataloader.dataset.get('filter_cfg')),
        test_size=test_size(cfg),
        multi_scale_test=multi_scale_test(cfg),
        drop_path=drop_path(model),
        hooks=[hook['type'] for hook in cfg.get('custom_hooks') or ()],
        settings={path: at(cfg.model, path) for path in row['settings']})


def approximately(node):
    """For comparison: 1/9 has no last digit."""
    if isinstance(node, dict):
        return {key: approximately(value) for key, value in node.items()}
    return pytest.approx(node, rel=1e-9) if isinstance(node, float) else node


@pytest.mark.parametrize(('name', 'row'), ROWS, ids=[name for name, _ in ROWS])
def test_recipe(load, build, name, row):
    found = recipe(load(name), build(name), row)
    assert found.keys() == row.keys()
    for part, value in row.items():  # one by one: the message is short
        assert found[part] == approximately(value), part


def test_every_experiment_is_in_the_table_once():
    assert sorted(name for name, _ in ROWS) == sorted(path.stem for path in CONFIGS.glob('*.py'))
    assert all(recipe['source'] for recipe in TABLE['recipes'])
    used = {row['augmentation'] for _, row in ROWS}
    assert used == TABLE['augmentations'].keys()
