"""Backbones of timm (PyTorch Image Models), by name."""
from collections.abc import Sequence
from pathlib import Path

from mmengine.registry import MODELS

from .pretrained import first_line
from .wrapped import Wrapped, around, close_to, optional, pixels, stages_in

# What lets a network that is made for one image size take any, under the names of its arguments.
ANY_SIZE = ({}, dict(dynamic_img_size=True), dict(strict_img_size=False, always_partition=True),
            dict(strict_img_size=False))


@MODELS.register_module()
class TimmBackbone(Wrapped):
    """A backbone of timm: some hundred networks, from ResNet to ViT.

    Args:
        name: as timm has it, such as 'convnext_tiny' or, with the weights meant, 'convnext_tiny.
            fb_in22k'; also 'hf-hub:NAME' and 'local-dir:FOLDER'.
        pretrained: True takes the weights that timm has for the name; a path takes a file of
            timm's or the authors' names. Neither is executed (safetensors, or torch's
            weights_only).
        model_args: what timm's constructor is to be told beside.
        out_indices, frozen_stages, drop_path_rate, norm_eval, use_checkpoint, init_cfg: as in
            ``Wrapped``.

    Raises:
        ValueError: timm (or torchvision, which it stands on) is missing, has no such network, or
            the network no maps to take.
    """

    def __init__(self,
                 name: str,
                 pretrained: bool | str | None = None,
                 out_indices: Sequence[int] | None = None,
                 frozen_stages: int = -1,
                 drop_path_rate: float | None = None,
                 norm_eval: bool = False,
                 use_checkpoint: bool = False,
                 model_args: dict | None = None,
                 init_cfg: dict | None = None):
        check_name(name)
        self.model_args = dict(model_args or {})
        super().__init__(name, out_indices, frozen_stages, drop_path_rate, norm_eval,
                         use_checkpoint, pretrained, init_cfg)

    def _all_maps(self):
        refusal = None
        for any_size in ANY_SIZE:
            try:
                return super()._all_maps(**any_size)
            except ValueError as error:  # of the first try: it is the network as it is
                refusal = refusal or error
        raise refusal

    def _identity(self):
        return f'{self.name} {self.model_args}'

    def _build(self, indices, **weights):
        arguments = {**self.any_size, **self.model_args, **weights}
        if self.drop_path_rate is not None:
            arguments['drop_path_rate'] = self.drop_path_rate
        if indices is not None:
            arguments['out_indices'] = tuple(indices)
        else:
            arguments['out_indices'] = tuple(range(self._count_features(arguments)))
        return create(self.name, features_only=True, **arguments)

    def _count_features(self, arguments):
        return len(create(self.name, features_only=True, **arguments).feature_info.info)

    def _maps(self, net, x):
        maps = net(x)
        if str(getattr(net, 'output_fmt', 'NCHW')).endswith('NHWC'):
            maps = [features.permute(0, 3, 1, 2) for features in maps]
        return maps

    def _parts(self, num_stages):
        count = self.first + num_stages
        if hasattr(self.net, 'return_layers'):  # timm flattened it into a sequence of modules
            ends = [info['module'].replace('.', '_') for info in self.net.feature_info.info]
            parts, names = [], []
            for name in self.net:
                names.append(name)
                if name in ends:
                    parts.append(names)
                    names = []
            if not set(ends[:self.out_indices[-1] + self.first + 1]) <= set(self.net):
                return None  # two features lie in one module
            parts += [[]] * (count - len(parts))
            return [sum(parts[:self.first], []), *parts[self.first:]] if self.first else (
                self._without_stem(parts))
        path = stages_in(self.net, [count, self.out_indices[-1] + self.first + 1])
        if path is None:
            return None
        before, behind = around(self.net, path)
        parts = [[f'{path}.{i}'] for i in range(len(self.net.get_submodule(path)))]
        parts = [before + sum(parts[:self.first], []), *parts[self.first:]]
        parts += [[]] * (num_stages + 1 - len(parts))  # cut off behind the last map
        parts[-1] = parts[-1] + behind
        return parts

    @staticmethod
    def _without_stem(parts):
        """The first feature is stage 0: what comes before its own module is the stem."""
        return [parts[0][:-1], parts[0][-1:], *parts[1:]]

    @property
    def normalisation(self) -> dict:
        """The mean, std and bgr_to_rgb of a ``data_preprocessor``."""
        said = getattr(self.net, 'pretrained_cfg', None) or {}
        return pixels(said['mean'], said['std']) if said.get('mean') and said.get('std') else {}

    def _load(self):
        weights = dict(pretrained=True)
        if isinstance(self.pretrained, str):
            if not Path(self.pretrained).expanduser().is_file():
                raise ValueError(f'there is no weight file {self.pretrained}')
            weights['pretrained_cfg_overlay'] = dict(file=str(Path(self.pretrained).expanduser()))
        try:
            filled = self._build([i + self.first for i in self.out_indices], **weights)
        except Exception as error:  # offline, no weights for the name, of another network
            raise ValueError(f'the weights of {self.name} cannot be had: {first_line(error)} '
                             'Where the hub cannot be reached, give a file: '
                             'pretrained=FILE') from None
        self._take(filled, self.name)


def check_name(name: str):
    """Raise ValueError unless timm knows a network."""
    timm = optional('timm', 'TimmBackbone')
    source, _, _ = name.rpartition(':')
    if not source and not timm.is_model(name.split('.')[0]):
        raise ValueError(f'timm has no network {name!r}{close_to(name, timm.list_models())}')
    tags = [] if source else timm.list_pretrained(name.split('.')[0] + '.*')
    if '.' in name and not source and name not in tags:
        raise ValueError(f'timm has no weights {name!r}{close_to(name, tags)}')


def create(name: str, **arguments):
    """``timm.create_model``, whose refusals become one message."""
    timm = optional('timm', 'TimmBackbone')
    try:
        return timm.create_model(name, **arguments)
    except Exception as error:
        if arguments.get('pretrained'):
            raise
        raise ValueError(f'timm cannot make {name} as a backbone: {first_line(error)}') from None
