"""Backbones of Hugging Face's transformers (``AutoBackbone``), by name, folder or config."""
import copy
from collections.abc import Sequence
from pathlib import Path

from mmengine.registry import MODELS

from .pretrained import MIN_MATCHED, first_line, grouped
from .wrapped import Wrapped, around, close_to, optional, pixels, stages_in

# What a config says that concerns no backbone, or is set here.
LEFT_OUT = ('id2label', 'label2id', 'architectures', 'transformers_version', 'dtype', 'torch_dtype',
            'out_features', 'out_indices', 'stage_names', 'problem_type', '_name_or_path')


@MODELS.register_module()
class TransformersBackbone(Wrapped):
    """A backbone of transformers: ConvNeXt, Swin, PVT v2, DINOv2, DINOv3, BEiT, ResNet and more.

    Args:
        config: a name on the Hugging Face hub, a folder with config.json, such a file, or what it
            holds (with ``model_type``).
        pretrained: True takes the weights of ``config``, a name or folder; or another one's name.
            They are read without executing anything (safetensors, or torch's weights_only).
        out_indices, frozen_stages, drop_path_rate, norm_eval, use_checkpoint, init_cfg: as in
            ``Wrapped``.

    Raises:
        ValueError: transformers is missing, cannot reach the hub, or has no such backbone.
    """

    def __init__(self,
                 config: str | dict,
                 pretrained: bool | str | None = None,
                 out_indices: Sequence[int] | None = None,
                 frozen_stages: int = -1,
                 drop_path_rate: float | None = None,
                 norm_eval: bool = False,
                 use_checkpoint: bool = False,
                 init_cfg: dict | None = None):
        self.config = read_config(config)
        name = config if isinstance(config, str) else self.config.model_type
        if pretrained is True:
            if not isinstance(config, str):
                raise ValueError(f'{name}: pretrained=True takes the weights that lie beside the '
                                 'config, which is given as a dict: name them, pretrained=NAME')
            pretrained = config
        if drop_path_rate is not None:
            if not hasattr(self.config, 'drop_path_rate'):
                raise ValueError(f'{name} has no stochastic depth: drop_path_rate must be None')
            self.config.drop_path_rate = drop_path_rate
        super().__init__(name, out_indices, frozen_stages, drop_path_rate, norm_eval,
                         use_checkpoint, pretrained, init_cfg)
        self.source = config

    @property
    def normalisation(self) -> dict:
        """The mean, std and bgr_to_rgb of a ``data_preprocessor``; {}: nothing is said."""
        return normalisation(self.source)

    def _build(self, indices):
        config = copy.deepcopy(self.config)
        names = config.stage_names
        stem = names[0] == 'stem'
        config.out_indices = [i + stem for i in
                              (range(len(names) - stem) if indices is None else indices)]
        transformers = optional('transformers', 'TransformersBackbone')
        try:
            return transformers.AutoBackbone.from_config(config)
        except Exception as error:  # entries that do not fit together, a package that it needs
            raise ValueError(f'transformers cannot make {config.model_type} as a backbone: '
                             f'{" ".join(str(error).split())[:300]}') from None

    def _identity(self):
        return self.config.to_json_string()

    def _maps(self, net, x):
        return net(x).feature_maps

    def _parts(self, num_stages):
        names = self.config.stage_names[-num_stages - self.first:]
        path = stages_in(self.net, [len(names)])
        if path is None:
            return None
        before, behind = around(self.net, path)
        norms = 'hidden_states_norms'  # one for each map that is returned
        with_norm = set(getattr(self.net, norms, ())) if norms in behind else set()
        parts = [[f'{path}.{i}'] + [f'{norms}.{name}'] * (name in with_norm)
                 for i, name in enumerate(names)]
        parts = [before + sum(parts[:self.first], []), *parts[self.first:]]
        parts[-1] += [name for name in behind if name != norms or not with_norm]
        return parts

    def _load(self):
        net, source = type(self.net), str(self.pretrained)
        try:
            filled, info = net.from_pretrained(source, config=copy.deepcopy(self.net.config),
                                               output_loading_info=True)
        except Exception as error:  # offline, no such name, a damaged file
            raise ValueError(f'the weights of {source} cannot be had: {first_line(error)} Where '
                             'the hub cannot be reached, give a folder with config.json and '
                             'model.safetensors') from None
        own = filled.state_dict()
        missing = [name for name in info['missing_keys']
                   if not name.startswith('hidden_states_norms')]
        mismatched = [entry[0] for entry in info['mismatched_keys']]
        lacking = sum(own[name].numel() for name in {*missing, *mismatched} if name in own)
        share = 1 - lacking / sum(value.numel() for value in own.values())
        if share < MIN_MATCHED:
            raise ValueError(f'{source} fills {share:.0%} of the backbone: it is another model. '
                             f'Not in it: {grouped(missing)}; of another shape: '
                             f'{grouped(mismatched)}')
        self._take(filled, f'{source} (not in it: {grouped(info["missing_keys"])})')


def read_config(source: str | dict):
    """The transformers config of a name, a folder, a file, or what such a file holds.

    Raises:
        ValueError: there is none, or of no backbone.
    """
    transformers = optional('transformers', 'TransformersBackbone')
    if isinstance(source, str):
        path = Path(source).expanduser()
        looks_local = path.exists() or path.suffix == '.json' or source.startswith(('.', '/', '~'))
        if looks_local and not path.exists():
            raise ValueError(f'there is no file or folder {source}')
        try:
            entries, _ = transformers.PreTrainedConfig.get_config_dict(
                str(path) if looks_local else source)
        except Exception as error:  # offline, no such name, no JSON
            raise ValueError(
                f'the config of {source} cannot be had: {first_line(error)} It is looked for on '
                'the Hugging Face hub; where that cannot be reached, give a folder with '
                'config.json, or the file') from None
    else:
        entries = to_plain(source)
    known = transformers.models.auto.modeling_auto.MODEL_FOR_BACKBONE_MAPPING_NAMES
    kind = entries.get('model_type')
    if kind not in known or kind == 'timm_backbone':  # (TimmBackbone is for those)
        raise ValueError(f'{source if isinstance(source, str) else "the config"}: transformers has '
                         f'no backbone of the type {kind!r}{close_to(str(kind), known)} It has '
                         f'{", ".join(sorted(set(known) - {"timm_backbone"}))}')
    entries = {name: value for name, value in entries.items() if name not in LEFT_OUT}
    entries.pop('model_type')
    try:
        return transformers.AutoConfig.for_model(kind, **entries)
    except Exception as error:  # entries that it does not check, checks of several libraries
        raise ValueError(f'the config of {kind} cannot be read: '
                         f'{" ".join(str(error).split())[:300]}') from None


def to_plain(node):
    """Dicts and lists of their own kind: mmengine's are others, which transformers refuses."""
    if isinstance(node, dict):
        return {key: to_plain(value) for key, value in node.items()}
    return [to_plain(value) for value in node] if isinstance(node, list | tuple) else node


def as_entries(config) -> dict:
    """What a config says beyond its type's defaults, for a file that needs no other."""
    entries = to_plain(config.to_diff_dict())
    return {'model_type': config.model_type,
            **{name: value for name, value in entries.items() if name not in LEFT_OUT}}


def normalisation(source: str | dict) -> dict:
    """How images come to the network: the image processor's file beside the config.

    Args:
        source: as ``TransformersBackbone.config``.

    Returns:
        The mean, std and bgr_to_rgb of a ``data_preprocessor``; {}: nothing is said.
    """
    transformers = optional('transformers', 'TransformersBackbone')
    if not isinstance(source, str) or Path(source).is_file():
        return {}
    try:
        said, _ = transformers.image_processing_base.ImageProcessingMixin.get_image_processor_dict(
            source)
    except OSError:
        return {}
    scale = said.get('rescale_factor', 1 / 255) if said.get('do_rescale', True) else 1.
    rgb = not said.get('do_flip_channel_order')
    if said.get('do_normalize') is False:
        return pixels([0.] * 3, [1.] * 3, scale, rgb)
    if 'image_mean' not in said or 'image_std' not in said:
        return {}
    return pixels(said['image_mean'], said['image_std'], scale, rgb)


def has_weights(source: str) -> bool:
    """Whether weights lie in a folder, beside its config.json. (A name on the hub has some.)"""
    path = Path(source).expanduser()
    return not path.exists() or path.is_dir() and any(
        (path / name).is_file() for name in
        ('model.safetensors', 'model.safetensors.index.json', 'pytorch_model.bin'))
