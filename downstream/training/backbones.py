"""``--backbone``: an experiment with another backbone, without a config of one's own."""
import difflib
import re
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from backbones import from_transformers
from backbones.base import IMAGENET, Backbone, maps_of
from backbones.wrapped import Wrapped

from ..errors import UserError
from ..experiments import CONFIGS

# The backbone's part of METHOD_BACKBONE_SCHEDULE.py.
EXPERIMENT = re.compile(
    r'(?P<method>maskrcnn|upernet|retinanet|detr|dino|atss|sparsercnn|cascade_maskrcnn|mask2former'
    r'|linear)'
    r'_(?P<name>\w+?)(_fl4)?(_[45]scale|_ade20k|_coco_panoptic)?(_plain)?_(\dx|\d+e|\d+k)(_\w+)?')
# Necks that make a pyramid of one resolution, and how they call what the sides are multiplied by.
PYRAMIDS = {'Feature2Pyramid': 'rescales', 'SimplePyramid': 'scales'}
# Parameters that stand for a place or a token; no recipe here decays them where it spares norms.
PLACES = re.compile(r'pos(ition)?_?embed|_tokens?$|position_bias_table$')
NORMS = _BatchNorm, nn.LayerNorm, nn.GroupNorm


def use_backbone(cfg: Config, name: str, options: dict | None = None) -> list[str]:
    """Let an experiment run on another backbone.

    It gives maps of the strides that the experiment's own gives (a pyramid is made where it has one
    resolution only); the channels of necks and heads follow, and so do the normalisation of images
    and what the optimizer does not decay.

    Args:
        cfg: the experiment; changed in place.
        name: 'timm:NAME', 'hf:NAME' (or a folder or file with its config), a registered class, or
            a variant of the experiments' names, such as 'focalnet_t'.
        options: of --cfg-options; those of model.backbone are for the new backbone.

    Returns:
        The lines to log.

    Raises:
        UserError: there is no such backbone, or the experiment cannot use it.
    """
    model, scope = cfg.model, cfg.get('default_scope')
    if 'backbone' not in model:
        raise UserError(f'--backbone: {model.get("type")} has no part of that name')
    _, wanted = built(model.backbone, scope, "the experiment's own backbone")
    necks = model.get('neck') or []
    necks = list(necks) if isinstance(necks, list | tuple) else [necks]
    wanted = [stride for _, stride in wanted]
    if necks and kind(necks[0]) in PYRAMIDS:
        first = necks.pop(0)
        scales = first.get(PYRAMIDS[kind(first)], (4, 2, 1, 0.5))
        wanted = [stride / scale for stride, scale in zip(wanted, scales, strict=True)]

    given = {key: value for key, value in (options or {}).items()
             if key.startswith('model.backbone.')}
    found, images = find_backbone(name, scope)
    new = Config(dict(model=dict(backbone=found)))
    new.merge_from_dict(given)
    backbone = new.model.backbone
    try:
        net, maps = built(backbone, scope, 'it')
        indices, scales = choose_maps(net, maps, wanted, 'out_indices' in backbone)
    except UserError as error:
        raise UserError(f'--backbone {name}: {error}') from None
    if indices is not None and indices != list(net.out_indices):
        backbone.out_indices = indices
        net, maps = built(backbone, scope, f'--backbone {name}')
    channels = [width for width, _ in maps]
    if scales:
        necks.insert(0, dict(type='SimplePyramid', in_channels=channels[0], scales=scales))
        channels *= len(scales) // len(channels)
    fit_channels(model, necks, channels)
    model.backbone = backbone
    if model.get('data_preprocessor'):
        model.data_preprocessor.update(images or getattr(net, 'normalisation', None) or IMAGENET)
    spared = spare_from_decay(cfg, net)
    strides = ', '.join(f'{stride:g}' for stride in wanted)
    return [f'The backbone is {name}: {sum(p.numel() for p in net.parameters()) / 1e6:.1f} M '
            f'parameters, maps of {channels} channels and strides {strides}'
            + (', the latter made by SimplePyramid' if scales else '') + '.'] + (
        [f'{spared} of its normalisations, positions and tokens are not decayed, as the recipe '
         'does not decay those of its own.'] if spared else [])


def kind(part: dict) -> str:
    """A config's type without its scope."""
    return str(part.get('type')).rpartition('.')[2]


def built(backbone: dict, scope: str | None, what: str):
    """A backbone of no memory (on the meta device), and its maps' (channels, stride).

    Raises:
        UserError: it cannot be built, or gives no maps.
    """
    config = dict(backbone, _scope_=scope)
    try:
        try:
            with torch.device('meta'):
                net = MODELS.build(config)
        except (RuntimeError, NotImplementedError):  # mmdet's Swin reads numbers from tensors
            net = MODELS.build(config).to('meta')
        if isinstance(net, Wrapped):
            return net, list(zip(net.channels, net.strides, strict=True))
        return net, maps_of(net)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise UserError(f'{what} cannot be used: {" ".join(str(error).split())}') from None


# -- names -------------------------------------------------------------------------------------

def find_backbone(name: str, scope: str | None) -> tuple[dict, dict]:
    """The config of a backbone by name, and how images come to it ({}: nothing is known).

    Raises:
        UserError: there is none of that name; with those that are close.
    """
    library, colon, inner = name.partition(':')
    if colon and library not in ('timm', 'hf'):
        raise UserError(f'--backbone {name}: before the colon is timm or hf')
    try:
        if library == 'timm' and colon:
            return dict(type='TimmBackbone', name=inner, pretrained=True), {}
        if colon:
            config = from_transformers.read_config(inner)
            source = inner if not Path(inner).exists() else str(Path(inner).absolute())
            return dict(type='TransformersBackbone',
                        config=from_transformers.as_entries(config),
                        pretrained=source if from_transformers.has_weights(inner) else None
                        ), from_transformers.normalisation(inner)
    except ValueError as error:
        raise UserError(f'--backbone {name}: {error}') from None
    known = variants(scope)
    if name in known:
        there = Config.fromfile(known[name], import_custom_modules=False)
        found = there.model.backbone
        found.pop('out_indices', None)
        if there.default_scope != scope and found.type not in MODELS.module_dict:
            found.type = f'{there.default_scope}.{found.type}'
        return found, {}
    registered = {key for key, cls in MODELS.module_dict.items()
                  if isinstance(cls, type) and issubclass(cls, Backbone)
                  and not issubclass(cls, Wrapped)}  # (those need more than their name)
    if name in registered or MODELS.get(name):
        return dict(type=name), {}
    close = difflib.get_close_matches(name, [*known, *registered], n=4, cutoff=0.5)
    raise UserError(f'--backbone {name}: there is no such backbone'
                    + (f'; did you mean {" or ".join(close)}?' if close else '')
                    + f' There are timm:NAME, hf:NAME, {", ".join(sorted(registered))}; and, as '
                      f'the experiments have them, {", ".join(sorted(known))}')


def variants(scope: str | None) -> dict[str, Path]:
    """{'focalnet_t': the experiment to take it from}; mmseg's networks differ from mmdet's."""
    first = 'upernet' if scope == 'mmseg' else 'maskrcnn'
    found = {}
    for path in sorted(CONFIGS.glob('*.py')):
        if match := EXPERIMENT.fullmatch(path.stem):
            found.setdefault(match['name'], []).append((match['method'] != first, path))
    return {name: min(paths)[1] for name, paths in found.items()}


# -- maps --------------------------------------------------------------------------------------

def choose_maps(net: nn.Module, maps: list[tuple[int, int]], wanted: list[float], settled: bool):
    """Which maps a backbone is to return: (out_indices or None, scales of a pyramid or None).

    Args:
        net: the backbone.
        maps: (channels, stride) of what it returns.
        wanted: the strides that the experiment needs.
        settled: whether its out_indices are given and stay.

    Raises:
        UserError: it has none of a stride that the experiment needs.
    """
    strides = [stride for _, stride in maps]
    indices = None if settled else getattr(net, 'out_indices', None)
    if strides == wanted:
        return None, None
    if getattr(net, 'isotropic', len(strides) > 1 and len(set(strides)) == 1):
        chosen = None if indices is None else list(indices[-len(wanted):])
        count = len(strides if chosen is None else chosen)
        if count not in (1, len(wanted)):
            raise UserError(f'it gives {count} maps of one stride, the experiment needs '
                            f'{len(wanted)} (or one)')
        scales = [strides[0] / stride for stride in wanted]
        return chosen, None if scales == [1.] else scales
    last = {stride: i for i, stride in enumerate(strides)}
    if not set(wanted) <= set(last) or indices is None:
        raise UserError(f'it gives maps of the strides {strides}, the experiment needs '
                        f'{[int(stride) for stride in wanted]}'
                        + ('' if settled or hasattr(net, 'out_indices') else
                           ', and it has no argument out_indices'))
    return [indices[last[stride]] for stride in wanted], None


def fit_channels(model: dict, necks: list[dict], channels: list[int]):
    """Set the necks, and the in_channels of whatever takes the backbone's maps."""
    model.pop('neck', None)
    if necks:
        model.neck = necks[0] if len(necks) == 1 else necks
    readers = [neck for neck in necks if kind(neck) not in PYRAMIDS][:1]
    if not readers:
        readers = [head for key, part in model.items() if key.endswith('head') and part
                   for head in (part if isinstance(part, list | tuple) else [part])]
    for reader in readers:
        index = reader.get('in_index')
        if isinstance(index, int):
            reader['in_channels'] = channels[index]
        elif index is not None:
            reader['in_channels'] = [channels[i] for i in index]
        elif isinstance(reader.get('in_channels'), int):
            reader['in_channels'] = channels[0]
        elif 'in_channels' in reader:
            reader['in_channels'] = list(channels)


# -- the optimizer -----------------------------------------------------------------------------

def spare_from_decay(cfg: Config, net: nn.Module) -> int:
    """Where a recipe spares norms from weight decay, do so for a backbone that names them
    otherwise, and for its positions and tokens. Returns how many parameters that are."""
    paramwise = (cfg.get('optim_wrapper') or {}).get('paramwise_cfg') or {}
    keys = paramwise.get('custom_keys') or {}
    by_kind = paramwise.get('norm_decay_mult') == 0
    if not by_kind and not any('norm' in key and rule.get('decay_mult') == 0
                               for key, rule in keys.items()):
        return 0
    order = sorted(sorted(keys), key=len, reverse=True)  # as mmengine takes them
    added = {}
    for prefix, module in net.named_modules(prefix='backbone'):
        norm = isinstance(module, NORMS) or type(module).__name__.endswith('Norm')
        for leaf, parameter in module.named_parameters(recurse=False):
            if not (parameter.requires_grad and (norm or PLACES.search(leaf))):
                continue
            name = f'{prefix}.{leaf}'
            rule = next((keys[key] for key in order if key in name), None)
            decayed = (rule.get('decay_mult', 1.) != 0 if rule is not None else
                       not (by_kind and isinstance(module, NORMS)))
            if decayed:
                added[name] = {**(rule or {}), 'decay_mult': 0.}
    if added:
        cfg.optim_wrapper.paramwise_cfg.custom_keys = {**keys, **added}
    return len(added)
