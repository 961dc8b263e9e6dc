"""Make of any published weight file one that is loaded here as it is: docs/weights.md.

ImageNet weights become a backbone's, the authors' and detrex's DINO mmdet's; of a training
checkpoint the weights stay, averaged ones where EMA was used.
"""
import json
from pathlib import Path

import safetensors.torch
import torch
from mmengine.registry import MODELS

from backbones.base import Backbone
from backbones.download import sha256
from backbones.pretrained import (
    CONTAINERS,
    TRUSTED,
    Match,
    kind_of,
    local_file,
    match,
    our_names,
    read_checkpoint,
    summary,
    weights_in,
)

from ..errors import UserError
from ..heads.dino import from_origin, keep_coco_classes, origin_of
from ..saving import whole_file
from .checkpoints import check_fit, kind_of_model, tensors_of
from .launching import make_writable, read_config

KEPT_META = ('experiment_name', 'dataset_meta', 'CLASSES', 'PALETTE', 'epoch', 'iter',
             'mmengine_version', 'mmdet_version', 'mmseg_version', 'dino')


def convert_model(state, cfg, args, meta):
    """A whole detector or segmentor. Returns (tensors, what was done in words); adds to meta."""
    rules = []
    if origin := origin_of(state):
        state = from_origin(state, origin)
        rules.append(f"names of {origin.owner} -> mmdet's")
        meta['dino'] = origin.variant
        kept = state if args.keep_classes else keep_coco_classes(state)
        if kept is not state:
            rules.append("91 classes -> COCO's 80")
        state = kept
    state = tensors_of(state)
    if cfg is None:
        return state, rules
    if args.keep_classes and 'bbox_head.cls_branches.0.bias' in state:
        cfg.model.bbox_head.num_classes = len(state['bbox_head.cls_branches.0.bias'])
    with torch.device('meta'):  # only names and shapes matter
        model = MODELS.build(dict(cfg.model, _scope_=cfg.get('default_scope')))
    fit = Match(state, model.state_dict())
    check_fit(fit, model, args.source, meta, args.allow_partial)
    print(f'{args.config}: {fit}')
    return state, rules


def convert_backbone(state, cfg, args, meta):
    """ImageNet weights. Returns (tensors, what was done in words)."""
    state, naming = our_names(state)
    rules = [] if naming == 'ours' else [f'names of {naming} -> ours']
    head = [name for name in state if name.startswith(('head.', 'head_dist.'))]
    if head:
        rules.append('classifier dropped')
        state = {name: value for name, value in state.items() if name not in head}
    if cfg is None:
        return state, rules
    backbone = MODELS.build(dict(cfg.model.backbone, _scope_=cfg.get('default_scope')))
    if not isinstance(backbone, Backbone):
        raise UserError(f'{args.config}: {type(backbone).__name__} is a backbone of mmdet or mmseg,'
                        ' which load their own weights; this tool fits those of the families here')
    result = match(state, backbone.state_dict(), args.source, backbone._adapt_weights,
                   args.allow_partial)
    print(f'{args.config}: {result}')
    return result.fits, rules + ([summary(result.changed)] if result.changed else [])


def write(path, state, about):
    """Write tensors, each with memory of its own, and what is to be known of them."""
    state = {name: value.detach().clone(memory_format=torch.contiguous_format)
             for name, value in state.items()}
    with whole_file(path) as part:
        if path.suffix == '.safetensors':
            texts = {key: value if isinstance(value, str) else json.dumps(value, default=str)
                     for key, value in about.items()}
            safetensors.torch.save_file(state, part, {'format': 'pt', **texts})
        else:
            torch.save({'meta': about, 'state_dict': state}, part)


def convert(args):
    """Convert a file as the arguments of tools/convert_checkpoint.py say, and tell what was done.

    Returns:
        Whether it is a whole detector or segmentor, no backbone alone.

    Raises:
        UserError: there is no such file or config, or the one is not the other's.
        ValueError: from backbones.pretrained, about the file.
    """
    target = Path(args.target)
    if target.suffix not in ('.safetensors', '.pth', '.pt'):
        raise UserError(f'{target}: give it a name in .safetensors or .pth')
    make_writable(target.absolute().parent, 'DST')
    cfg = read_config(args.config, {}, 'model') if args.config else None
    if args.trust_checkpoint:
        TRUSTED.add(args.source)
    checkpoint = read_checkpoint(args.source)
    source = local_file(args.source)
    if target.exists() and source.samefile(target):
        raise UserError(f'{target} is the source itself')
    state = weights_in(checkpoint, args.source)
    rest = {} if state is checkpoint else checkpoint
    meta = dict(rest['meta']) if isinstance(rest.get('meta'), dict) else {}
    names = tensors_of(state)
    whole = any(name.startswith('backbone.') for name in names) and any(
        not name.startswith('backbone.') for name in names)
    state, rules = (convert_model if whole else convert_backbone)(names, cfg, args, meta)
    if 'ema_state_dict' in rest:  # where mmengine's EMAHook puts what is not averaged
        rules.append('averaged weights (EMA) kept')
    dropped = [key for key in rest if key not in (*CONTAINERS, 'meta')]
    if dropped:
        rules.append(f'dropped: {", ".join(dropped)}')
    with open(source, 'rb') as file:
        about = {'source': source.name, 'source_sha256': sha256(file), 'rules': rules}
    about.update({key: meta[key] for key in KEPT_META if key in meta})
    write(target, state, about)
    print(f'{target}: {len(state)} tensors of {(kind_of_model if whole else kind_of)(state)}\n'
          f'  from {args.source}, SHA-256 {about["source_sha256"]}\n'
          f'  done to them: {"; ".join(rules) or "nothing"}')
    return whole
