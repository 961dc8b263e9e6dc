"""DINO as it was published (Zhang et al., arXiv 2203.03605), and its published names."""
import re

from mmdet.models.detectors import DINO
from mmdet.models.layers import MLP
from mmdet.registry import MODELS
from torch import Tensor

from .errors import UserError


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


# Names in the authors' checkpoints and mmdet's, in the order in which they are tried. In a decoder
# layer of theirs the norms are numbered by age, of mmdet's by place: self-attention's is norm2.
RELEASED_NAMES = [(re.compile(pattern), name) for pattern, name in (
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
    (r'transformer\.enc_out_bbox_embed\.layers\.(\d)\.', r'bbox_head.reg_branches.{last}.{mlp}.'),
    (r'class_embed\.(\d+)\.', r'bbox_head.cls_branches.\1.'),
    (r'bbox_embed\.(\d+)\.layers\.(\d)\.', r'bbox_head.reg_branches.\1.{mlp}.'),
    (r'label_enc\.', r'dn_query_generator.label_embedding.'),
    (r'input_proj\.(\d+)\.0\.', r'neck.{conv}.conv.'),
    (r'input_proj\.(\d+)\.1\.', r'neck.{conv}.gn.'),
)]


def is_released_dino(state: dict[str, Tensor]) -> bool:
    """Whether these are names of the authors' DINO code."""
    return any(name.removeprefix('module.') == 'transformer.level_embed' for name in state)


def from_released_dino(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint of the authors' DINO code under mmdet's names.

    Args:
        state: the authors' entries (``backbone.0.*``, ``transformer.*``, ``class_embed.*`` ...).

    Returns:
        The same tensors as a ``ReleasedDINO`` names them; the label embedding without its last row,
        which mmdet does not have. The number of classes is the file's.

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
        found = next(((match, target) for pattern, target in RELEASED_NAMES
                      if (match := pattern.match(name))), None)
        if found is None:
            raise UserError(f"{name} is no entry of the authors' DINO checkpoints")
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
        if name == 'label_enc.weight':
            value = value[:-1]
        renamed[target + name[match.end():]] = value
    return renamed


# The authors' classifiers have a row for each of COCO's category ids, of which ten are not in use.
COCO_IDS = [i for i in range(1, 91) if i not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]


def keep_coco_classes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of 91 classes the 80 that exist, in the order in which mmdet counts them: that of their ids.

    Args:
        state: entries under mmdet's names.

    Returns:
        The entries; those of a classifier for another number of classes stay as they are.
    """
    return {name: value[COCO_IDS] if len(value) == 91 and re.match(
        r'bbox_head\.cls_branches\.|dn_query_generator\.label_embedding\.', name) else value
        for name, value in state.items()}
