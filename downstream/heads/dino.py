"""DINO as it was published (Zhang et al., arXiv 2203.03605), and its published names."""
import json
import re
from typing import NamedTuple

from mmdet.models.dense_heads import DINOHead
from mmdet.models.detectors import DINO
from mmdet.models.layers import MLP
from mmdet.registry import MODELS
from torch import Tensor, nn

from backbones import FocalModulation

from ..errors import UserError


class RefPointHead(MLP):
    """From the sine encoding of a reference box to its query's position.

    The release, mmdet 3.3.0 and every published DINO encode each of a box's four numbers with half
    of the model's width. onedl-mmdetection 3.5.1 encodes with the whole width, and its head has
    twice the inputs: published weights do not fit. The frequencies of the narrow encoding are
    every second one of the wide encoding, which is therefore thinned out here.

    Args:
        embed_dims: the model's width C.
    """

    def __init__(self, embed_dims: int):
        super().__init__(2 * embed_dims, embed_dims, embed_dims, 2)
        self.in_features = 2 * embed_dims

    def forward(self, encoding: Tensor) -> Tensor:
        """(..., 2 C) or (..., 4 C) to (..., C)."""
        if encoding.shape[-1] == 2 * self.in_features:
            # pairs of sine and cosine, of which every second is kept
            encoding = encoding.unflatten(-1, (-1, 2, 2))[..., 0, :].flatten(-2)
        return super().forward(encoding)


@MODELS.register_module()
class ReleasedDINO(DINO):
    """mmdet's DINO with the reference point head that published weights have.

    Raises:
        ValueError: images so small that they have fewer places than there are queries.
    """

    def _init_layers(self):
        super()._init_layers()
        self.decoder.ref_point_head = RefPointHead(self.embed_dims)

    def pre_decoder(self, memory: Tensor, *args, **kwargs):
        if memory.shape[1] < self.num_queries:
            raise ValueError(
                f'the images have {memory.shape[1]} places in all scales together, but each of '
                f"DINO's {self.num_queries} queries starts from one: use larger images, or set "
                'model.num_queries lower')
        return super().pre_decoder(memory, *args, **kwargs)


@MODELS.register_module()
class ReleasedDINOHead(DINOHead):
    """mmdet's DINOHead with one class and one box layer for all layers of the decoder.

    So the authors trained (dec_pred_class_embed_share, dec_pred_bbox_embed_share), with others for
    the encoder's proposals; mmdet and detrex have others for each decoder layer too. The state dict
    has the shared layers under the names of all decoder layers.
    """

    def _init_layers(self):
        super()._init_layers()
        for branches in (self.cls_branches, self.reg_branches):
            for layer in range(1, len(branches) - 1):  # the last is for the encoder's proposals
                branches[layer] = branches[0]


class Origin(NamedTuple):
    """Whose names a DINO's checkpoint has, and what these say of the model beside its tensors."""
    owner: str
    sign: str  # the entry that only this naming has
    names: list  # (pattern, mmdet's name or None for what is there twice), tried in this order
    variant: dict  # as variant_of(), where the names tell it


def naming(*pairs):
    return [(re.compile(pattern), name) for pattern, name in pairs]


# In a decoder layer of the authors' the norms are numbered by age, of mmdet's by place:
# self-attention's is norm2.
RELEASE = Origin(
    owner='the authors\' DINO',
    sign='transformer.level_embed',
    names=naming(
        (r'backbone\.0\.', r'backbone.'),
        (r'transformer\.level_embed', r'level_embed'),
        (r'transformer\.(encoder\.layers\.\d+)\.norm1\.', r'\1.norms.0.'),
        (r'transformer\.(encoder\.layers\.\d+)\.norm2\.', r'\1.norms.1.'),
        (r'transformer\.(decoder\.layers\.\d+)\.norm2\.', r'\1.norms.0.'),
        (r'transformer\.(decoder\.layers\.\d+)\.norm1\.', r'\1.norms.1.'),
        (r'transformer\.(decoder\.layers\.\d+)\.norm3\.', r'\1.norms.2.'),
        (r'transformer\.(\w+coder\.layers\.\d+)\.linear1\.', r'\1.ffn.layers.0.0.'),
        (r'transformer\.(\w+coder\.layers\.\d+)\.linear2\.', r'\1.ffn.layers.1.'),
        (r'transformer\.(decoder\.layers\.\d+\.self_attn)\.', r'\1.attn.'),
        (r'transformer\.decoder\.(?:bbox|class)_embed\..*', None),  # the detector's own, again
        (r'transformer\.((?:encoder|decoder)\.)', r'\1'),
        (r'transformer\.tgt_embed\.', r'query_embedding.'),
        (r'transformer\.enc_output\.', r'memory_trans_fc.'),
        (r'transformer\.enc_output_norm\.', r'memory_trans_norm.'),
        (r'transformer\.enc_out_class_embed\.', r'bbox_head.cls_branches.{last}.'),
        (r'transformer\.enc_out_bbox_embed\.layers\.(\d)\.',
         r'bbox_head.reg_branches.{last}.{mlp}.'),
        (r'class_embed\.(\d+)\.', r'bbox_head.cls_branches.\1.'),
        (r'bbox_embed\.(\d+)\.layers\.(\d)\.', r'bbox_head.reg_branches.\1.{mlp}.'),
        (r'label_enc\.', r'dn_query_generator.label_embedding.'),
        (r'input_proj\.(\d+)\.0\.', r'neck.{conv}.conv.'),
        (r'input_proj\.(\d+)\.1\.', r'neck.{conv}.gn.'),
    ),
    variant=dict(temperature=20, offset=0.))
DETREX = Origin(
    owner='detrex',
    sign='transformer.level_embeds',
    names=naming(
        (r'backbone\.', r'backbone.'),
        (r'neck\.((?:extra_)?convs\.\d+)\.conv\.', r'neck.\1.conv.'),
        (r'neck\.((?:extra_)?convs\.\d+)\.norm\.', r'neck.\1.gn.'),
        (r'transformer\.level_embeds', r'level_embed'),
        (r'transformer\.(\w+coder\.layers\.\d+)\.attentions\.0\.', r'\1.self_attn.'),
        (r'transformer\.(decoder\.layers\.\d+)\.attentions\.1\.', r'\1.cross_attn.'),
        (r'transformer\.(\w+coder\.layers\.\d+)\.ffns\.0\.', r'\1.ffn.'),
        (r'transformer\.(\w+coder\.layers\.\d+)\.norms\.', r'\1.norms.'),
        (r'transformer\.decoder\.(?:bbox|class)_embed\..*', None),  # the detector's own, again
        (r'transformer\.decoder\.(norm|ref_point_head)\.', r'decoder.\1.'),
        (r'transformer\.tgt_embed\.', r'query_embedding.'),
        (r'transformer\.enc_output\.', r'memory_trans_fc.'),
        (r'transformer\.enc_output_norm\.', r'memory_trans_norm.'),
        (r'class_embed\.(\d+)\.', r'bbox_head.cls_branches.\1.'),
        (r'bbox_embed\.(\d+)\.layers\.(\d)\.', r'bbox_head.reg_branches.\1.{mlp}.'),
        (r'label_enc\.', r'dn_query_generator.label_embedding.'),
    ),
    variant=dict(temperature=10000, offset=-0.5, normalize_modulator=False))


def origin_of(state: dict[str, Tensor]) -> Origin | None:
    """Whose DINO these names are, if anybody's but mmdet's."""
    names = {name.removeprefix('module.') for name in state if isinstance(name, str)}
    return next((origin for origin in (RELEASE, DETREX) if origin.sign in names), None)


def from_origin(state: dict[str, Tensor], origin: Origin) -> dict[str, Tensor]:
    """A DINO's checkpoint under mmdet's names.

    Args:
        state: the entries as the authors' code names them (``backbone.0.*``, ``transformer.*``,
            ``class_embed.*`` ...), or as detrex does (``neck.*``, ``transformer.*`` ...).
        origin: which of the two.

    Returns:
        The same tensors as a ``ReleasedDINO`` names them; the authors' label embedding without its
        last row, which mmdet does not have. The number of classes is the file's.

    Raises:
        UserError: an entry that such a checkpoint does not have.
    """
    state = {name.removeprefix('module.'): value for name, value in state.items()}
    layers = 1 + max((int(m[1]) for m in (re.match(r'class_embed\.(\d+)\.', name)
                                          for name in state) if m), default=-1)
    levels = sum(bool(re.fullmatch(r'input_proj\.\d+\.0\.weight', name)) for name in state)
    # Maps of the backbone have 1 x 1 kernels; what is made from the last of them has 3 x 3.
    maps = sum(state[f'input_proj.{i}.0.weight'].shape[-1] == 1 for i in range(levels))
    renamed = {}
    for name, value in state.items():
        found = next(((match, target) for pattern, target in origin.names
                      if (match := pattern.match(name))), None)
        if found is None:
            raise UserError(f'{name} is no entry of a checkpoint of {origin.owner}')
        match, target = found
        if target is None:
            continue
        if '{mlp}' in target:  # mmdet counts the activations between the layers too
            target = target.replace('{mlp}', str(2 * int(match[match.lastindex])))
        if '{conv}' in target:
            level = int(match[1])
            target = target.replace('{conv}', f'convs.{level}' if level < maps
                                    else f'extra_convs.{level - maps}')
        target = match.expand(target.replace('{last}', str(layers)))
        if name == 'label_enc.weight' and origin is RELEASE:
            value = value[:-1]
        renamed[target + name[match.end():]] = value
    return renamed


def variant_of(model: nn.Module) -> dict | None:
    """What no tensor's name or shape tells of a DINO, in the words that checkpoints record.

    Returns:
        dict with 'prediction_layers' ('shared' or 'separate'), 'temperature' and 'offset' of the
        position encoding, and, with FocalNet, 'normalize_modulator'; None for another model.
    """
    if not isinstance(model, DINO):
        return None
    first, second = model.bbox_head.cls_branches[:2]
    encoding = model.positional_encoding
    variant = dict(prediction_layers='shared' if first is second else 'separate',
                   temperature=encoding.temperature, offset=float(encoding.offset))
    scales = {module.scale for module in model.backbone.modules()
              if isinstance(module, FocalModulation)}
    if scales:
        variant['normalize_modulator'] = scales != {1.}
    return variant


def recorded_variant(meta: dict) -> dict:
    """What a checkpoint's meta records of its DINO, as ``variant_of``; {} if nothing."""
    variant = meta.get('dino') or {}
    return json.loads(variant) if isinstance(variant, str) else variant  # in .safetensors: a text


def other_variant(recorded: dict, own: dict, resume: bool) -> list[str]:
    """Where a file's DINO is another than the model, in words.

    Args:
        recorded, own: the file's variant and the model's, as ``variant_of``.
        resume: whether the file is to be trained on. (For a test, one shared layer and its equal
            copies are the same.)
    """
    return [f'{key.replace("_", " ")}: {recorded[key]} in the file, {own[key]} in the model'
            for key in own if recorded.get(key, own[key]) != own[key]
            and (resume or key != 'prediction_layers')]


# By what the tensors tell of a model: the experiments of the authors and of detrex with it.
EXPERIMENTS = {
    'DINO with 4 scales on FocalNet-L fl3':
        ('dino_focalnet_l_4scale_12e', 'dino_focalnet_l_4scale_12e_detrex'),
    'DINO with 4 scales on FocalNet-L fl4': (None, 'dino_focalnet_l_fl4_4scale_12e_detrex'),
    'DINO with 5 scales on FocalNet-L fl4':
        ('dino_focalnet_l_5scale_12e', 'dino_focalnet_l_5scale_12e_detrex'),
    'DINO with 5 scales on FocalNet-H fl4': ('dino_focalnet_h_5scale_12e', None),
}


def right_experiment(kind: str, recorded: dict) -> str:
    """A sentence that names the experiment of a file, '' if none here is its own.

    Args:
        kind: what its tensors tell; it begins as a key of ``EXPERIMENTS``.
        recorded: what is known beside, as ``variant_of``; may be nothing.
    """
    released, detrex = next((names for begin, names in EXPERIMENTS.items()
                             if kind.startswith(begin)), (None, None))
    is_released = recorded.get('temperature') == RELEASE.variant['temperature']
    name = released if is_released else detrex
    return f'Its config is configs/{name}.py. ' if name else ''


# The authors' classifiers have a row for each of COCO's category ids, of which ten are not in use.
COCO_IDS = [i for i in range(1, 91) if i not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]


def keep_coco_classes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of 91 classes the 80 that exist, in the order in which mmdet counts them: that of their ids.

    Args:
        state: entries under mmdet's names.

    Returns:
        The entries; those of a classifier for another number of classes stay as they are.
    """
    rows = [name for name, value in state.items() if re.match(
        r'bbox_head\.cls_branches\.|dn_query_generator\.label_embedding\.', name)
        and len(value) == 91]
    return {**state, **{name: state[name][COCO_IDS] for name in rows}} if rows else state
