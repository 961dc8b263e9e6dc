"""Checkpoints: read without running anybody's code, refused when they do not fit the model."""
import contextlib
import json
import os
import re

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import MODELS
from mmengine.runner import CheckpointLoader

from backbones.pretrained import (
    CONTAINERS,
    MIN_MATCHED,
    Match,
    kind_of,
    our_names,
    read_checkpoint,
    weights_in,
)
from backbones.weights import entry_of, is_name

from ..errors import UserError, printable
from ..experiments import CONFIGS
from ..heads.dino import (
    from_origin,
    keep_coco_classes,
    origin_of,
    other_variant,
    recorded_variant,
    right_experiment,
    variant_of,
)
from .fine_tuning import classes_of, for_other_classes

# Every other way of loading, too: mmengine's loaders of further schemes, the fork's second try
# without weights_only, third parties. torch.load then never unpickles more than the classes that
# backbones.pretrained lists.
os.environ['TORCH_FORCE_WEIGHTS_ONLY_LOAD'] = '1'
os.environ.pop('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', None)  # torch refuses to have both


@CheckpointLoader.register_scheme(prefixes=('', 'http://', 'https://'), force=True)
def load_from_file(filename, map_location='cpu', **_):
    """Load a file, URL or name for every mmengine loader (test, resume, load_from, Pretrained).

    Upstream's loader goes back to unpickling anything when the safe way fails (the fork) or cannot
    read its own checkpoints with torch >= 2.6 (mmengine 0.10.7); this one does neither.

    Returns:
        What the file holds, its weights as 'state_dict': those of the authors' and detrex's DINO
        under mmdet's names, reduced to COCO's 80 classes, and what the names tell in 'meta'.

    Raises:
        UserError: the file cannot be read safely, or holds no weights.
    """
    try:
        checkpoint = read_checkpoint(filename, map_location)
        state = weights_in(checkpoint, filename)
        rest = {} if state is checkpoint else {
            key: value for key, value in checkpoint.items() if key not in CONTAINERS}
        state = {name: value for name, value in state.items() if isinstance(name, str)}
        if 'meta' in rest:
            rest['meta'] = plain_meta(rest['meta'])
        if origin := origin_of(state):
            state = keep_coco_classes(from_origin(
                {name: value for name, value in state.items() if isinstance(value, torch.Tensor)},
                origin))
            rest['meta'] = {**rest.get('meta', {}), 'dino': origin.variant}
        if 'meta' in rest:  # resuming, mmengine runs this text as Python
            rest['meta'].pop('config', None)
    except ValueError as error:
        raise UserError(str(error)) from None
    return {**rest, 'state_dict': state}


def plain_meta(meta):
    """What a file says of its training, without what is none of what these words mean elsewhere.

    Returns:
        A dict, {} for anything else; its 'dataset_meta' and 'dino' are dicts of such, classes are
        names, a palette is colours.
    """
    def is_plain(key, value):
        key, several = str(key).lower(), isinstance(value, list | tuple)
        if key in ('classes', 'thing_classes', 'stuff_classes'):
            return several and all(isinstance(name, str) for name in value)
        if key == 'palette':
            return several and all(isinstance(color, list | tuple) and len(color) == 3 and all(
                isinstance(part, int) and 0 <= part <= 255 for part in color) for color in value)
        if key == 'dino':
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(value) if isinstance(value, str) else value
            return isinstance(value, dict) and all(
                isinstance(part, str | int | float | None) for part in value.values())
        return key != 'experiment_name' or isinstance(value, str)

    if not isinstance(meta, dict):
        return {}
    kept = {key: value for key, value in meta.items() if is_plain(key, value)}
    if 'dataset_meta' in kept:
        inner = kept['dataset_meta'] if isinstance(kept['dataset_meta'], dict) else {}
        kept['dataset_meta'] = {key: value for key, value in inner.items()
                                if is_plain(key, value)}
    return kept


def tensors_of(state):
    """The tensors of a model's state dict, without DistributedDataParallel's prefix."""
    return {re.sub(r'^module\.', '', name): value for name, value in state.items()
            if isinstance(name, str) and isinstance(value, torch.Tensor)}


def kind_of_model(state):
    """Which model tensors are, as far as their names and shapes tell."""
    kind = kind_of(our_names(state)[0])
    if not any(name.startswith('backbone.') for name in state):
        return f'{kind} alone'
    levels = state.get('level_embed')
    return kind if levels is None else f'DINO with {len(levels)} scales on {kind}'


def is_whole(fit):
    """Whether a match leaves nothing to chance: every parameter is filled, with the right shape.

    Older files lack counters of batches; the backbone must not be a part of a deeper one.
    """
    return (not fit.wrong and not fit.unequal and has_backbone(fit)
            and all(name.endswith('num_batches_tracked') for name in fit.missing))


def has_backbone(fit):
    return 'backbone' not in {name.split('.')[0] for name in fit.own} or (
        min(fit.shares('backbone.')) >= MIN_MATCHED)


def complaint(fit, source, meta):
    """What to tell a person about a match; ``meta`` is the file's."""
    if fit.unequal:
        return (f'{source} does not fit the model: {fit.differences(2)}.\nThe model has one class '
                'and one box layer for all layers of the decoder, as the authors trained it; the '
                "file has one for each, as mmdet's and detrex's DINO have "
                "(model.bbox_head.type='DINOHead'). "
                + right_experiment(kind_of_model(fit.state), recorded_variant(meta)))
    trained = meta.get('experiment_name')
    theirs, ours = kind_of_model(fit.state), kind_of_model(fit.own)
    kinds = f'Both are {ours}' if theirs == ours else f'The file is {theirs}, the model {ours}'
    text = (f'{source} does not fit the model: {len(fit.fits)} of {len(fit.own)} tensors fit. '
            f'{kinds}. First differences:\n  {fit.differences(2)}\n')
    if not any(name.startswith('backbone.') for name in fit.state):
        return text + "To start from a backbone's weights alone: tools/train.py --weights FILE"
    return text + (f'It was written by the experiment {trained}: is this its config?' if trained
                   else 'Is this the config it was trained with?') + (
        ' (Of a model trained with --data: the one in its work dir, or --data again.)'
        if theirs == ours else '')


def check_fit(fit, model, source, meta, allow_partial=False, whole=True, resume=False):
    """Raise UserError unless a file is the model's.

    Args:
        fit (Match): of the file's tensors and the model's.
        model (nn.Module): without what wraps it; may lie on the meta device.
        source (str): what to call the file.
        meta (dict): the file's.
        allow_partial, whole, resume: as in ``CheckFits``.
    """
    anyway = '' if resume or fit.unequal else '\n--allow-partial takes what fits.'
    good = is_whole(fit) if whole else has_backbone(fit)
    if fit.unequal or not fit.fits or not (good or allow_partial):
        raise UserError(complaint(fit, source, meta) + anyway)
    recorded = recorded_variant(meta)
    other = other_variant(recorded, variant_of(model) or {}, resume)
    if other and not allow_partial:
        raise UserError(f'{source} has the tensors of the model, but is another one, as no tensor '
                        'shows:\n  ' + '\n  '.join(other) + '\n'
                        + right_experiment(kind_of_model(fit.state), recorded) + anyway)


def check_name(cfg, source):
    """Raise UserError where a name is that of another DINO than the config's, before it is fetched.

    Args:
        cfg (Config): an experiment, with what its custom_imports register.
        source (str): a checkpoint; a path or URL is not looked at.
    """
    if not is_name(source) or 'config' not in entry_of(source):
        return
    theirs = CONFIGS / f'{entry_of(source)["config"]}.py'
    kinds = []
    for each in (cfg, Config.fromfile(theirs, import_custom_modules=False)):
        with torch.device('meta'):  # names and shapes, and what no tensor tells
            model = MODELS.build(dict(each.model, _scope_=each.get('default_scope')))
        if variant_of(model) is None:
            return  # what fits is seen from the tensors
        kinds.append((model, kind_of_model(model.state_dict())))
    (own, own_kind), (their, their_kind) = kinds
    other = other_variant(variant_of(their), variant_of(own), resume=True)
    if other or own_kind != their_kind:
        raise UserError(f'{source} is {their_kind}, of configs/{theirs.name}; the config has '
                        f'{own_kind}' + ''.join(f'\n  {line}' for line in other))


def bare(model):
    """A model without what wraps it for several processes or for test-time augmentation."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def whole_state(runner):
    """The tensors of a run's model by name; with FSDP, whose names and shapes alone count."""
    whole = getattr(getattr(runner, 'strategy', None), 'whole', None)
    return bare(runner.model).state_dict() if whole is None else whole


class CheckFits(Hook):
    """Refuses a checkpoint that is not the model's, where mmengine only warns; logs what fitted.

    Args:
        source (str): what to call the checkpoint.
        whole (bool): whether the checkpoint is the model (test, resume), so that everything must
            fit; otherwise (load_from, to fine-tune) 90 % of the backbone's parameters must.
        resume (bool): whether it must also hold the state of a training run.
        allow_partial (bool): take what fits, if anything does.
        keep_classes (bool): to fine-tune on other classes, keep the rows of those that have the
            same name in the file.
    """
    priority = 'VERY_LOW'  # after EMAHook has put its averaged weights in place

    def __init__(self, source, whole=True, resume=False, allow_partial=False, keep_classes=False):
        self.source, self.whole, self.resume = source, whole, resume
        self.allow_partial, self.keep_classes = allow_partial, keep_classes

    def before_save_checkpoint(self, runner, checkpoint):
        """Record what a later check cannot know from the tensors."""
        if variant := variant_of(bare(runner.model)):
            checkpoint['meta']['dino'] = variant

    def after_load_checkpoint(self, runner, checkpoint):
        model, own = bare(runner.model), whole_state(runner)
        buffers = {name.replace('_fsdp_wrapped_module.', '') for name, _ in model.named_buffers()}
        fit = Match(tensors_of(checkpoint['state_dict']), own, optional=buffers)
        check_fit(fit, model, self.source, checkpoint.get('meta') or {}, self.allow_partial,
                  whole=self.whole, resume=self.resume)
        runner.logger.info(f'{self.source}: {fit}')
        if not self.whole and fit.wrong:
            here = runner.train_dataloader.dataset.metainfo.get('classes') or ()
            checkpoint['state_dict'], lines = for_other_classes(
                fit, here, classes_of(checkpoint), self.keep_classes)
            for line in lines:
                runner.logger.info(f'{self.source}: {printable(line)}')
        if self.resume and not {'meta', 'optimizer', 'message_hub'} <= checkpoint.keys():
            raise UserError(f'{self.source} holds weights only, no state of a training run to go '
                            'on from; begin a run with them with --cfg-options load_from=FILE')
