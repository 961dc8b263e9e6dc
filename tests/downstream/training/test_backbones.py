"""--backbone: what of an experiment follows another backbone, and what is refused."""
import copy
import json

import pytest
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from networks import SMALL
from torch.nn.modules.batchnorm import _BatchNorm

from backbones.base import IMAGENET
from downstream.errors import UserError
from downstream.experiments import CONFIGS
from downstream.training import backbones
from downstream.training.backbones import built, spare_from_decay, use_backbone, variants

HEADS = ['demo/maskrcnn_focalnet', 'demo/retinanet_focalnet', 'demo/memorise_detr_focalnet',
         'demo/upernet_focalnet']


@pytest.fixture
def experiment(monkeypatch, tmp_path):
    """A function from a config's name to the config, in its scope."""
    monkeypatch.setenv('DEMO_ROOT', str(tmp_path))

    def read(name):
        cfg = Config.fromfile(CONFIGS / f'{name}.py', import_custom_modules=False)
        init_default_scope(cfg.default_scope)
        return cfg
    return read


@pytest.fixture
def small(tmp_path):
    """A function from an architecture's name to --backbone's for a small network of it."""
    pytest.importorskip('transformers')

    def write(name):
        path = tmp_path / name / 'config.json'
        path.parent.mkdir()
        path.write_text(json.dumps(dict(model_type=name, **SMALL[name])))
        return f'hf:{path}'
    return write


def one_image(scope):
    """An image and what is in it, as data loaders give it."""
    image = torch.randint(0, 256, (3, 75, 101), dtype=torch.uint8)
    meta = dict(img_shape=(75, 101), ori_shape=(75, 101), batch_input_shape=(75, 101),
                scale_factor=(1., 1.))
    if scope == 'mmseg':
        from mmengine.structures import PixelData
        from mmseg.structures import SegDataSample
        sample = SegDataSample(metainfo=meta)
        sample.gt_sem_seg = PixelData(data=torch.randint(0, 4, (1, 75, 101)))
    else:
        from mmdet.structures import DetDataSample
        from mmdet.structures.mask import BitmapMasks
        from mmengine.structures import InstanceData
        sample = DetDataSample(metainfo=meta)
        masks = torch.zeros(1, 75, 101, dtype=torch.uint8)
        masks[:, 10:60, 10:70] = 1
        sample.gt_instances = InstanceData(
            bboxes=torch.tensor([[10., 10., 70., 60.]]), labels=torch.tensor([1]),
            masks=BitmapMasks(masks.numpy(), 75, 101))
    return dict(inputs=[image], data_samples=[sample])


@pytest.mark.parametrize('head', HEADS, ids=lambda name: name.split('/')[-1].split('_f')[0])
@pytest.mark.parametrize('name', SMALL)
def test_networks_of_transformers_learn_in_every_head(head, name, experiment, small):
    cfg = experiment(head)
    use_backbone(cfg, small(name))
    torch.manual_seed(0)
    model = revert_sync_batchnorm(MODELS.build(cfg.model)).train()
    model.init_weights()
    for module in model.modules():  # one image gives BatchNorm one value at the top of PSP
        if isinstance(module, _BatchNorm):
            module.eval()
    data = model.data_preprocessor(one_image(cfg.default_scope), True)
    loss, _ = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    assert loss.isfinite()
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), key


def channels_in(cfg):
    """What the parts that read the backbone's maps expect, in their order."""
    necks = cfg.model.get('neck') or []
    parts = [*(necks if isinstance(necks, list) else [necks]),
             *(cfg.model.get(key) for key in ('decode_head', 'auxiliary_head', 'panoptic_head')
               if cfg.model.get(key))]
    return [part.get('in_channels') for part in parts]


@pytest.mark.parametrize('name, backbone, channels, indices', [
    ('maskrcnn_focalnet_t_1x', 'Container', [[64, 128, 320, 512]], [0, 1, 2, 3]),
    ('retinanet_focalnet_t_1x', 'container_light', [[128, 320, 512]], [1, 2, 3]),
    ('detr_focalnet_t_50e', 'resnet50', [[2048]], [3]),
    ('detr_focalnet_t_50e', 'localvit_t', [192, [192]], [11]),
    ('dino_focalnet_l_5scale_12e', 'swin_t', [[96, 192, 384, 768]], [0, 1, 2, 3]),
    ('upernet_focalnet_t_160k', 'swin_t', [[96, 192, 384, 768], 384], [0, 1, 2, 3]),
    ('upernet_focalnet_t_160k', 'pvt_t', [[64, 128, 320, 512], 320], [0, 1, 2, 3]),
    ('upernet_focalnet_t_160k', 'localvit_s', [384, [384] * 4, 384], [2, 5, 8, 11]),
    ('maskrcnn_localvit_t_1x', 'focalnet_t', [[96, 192, 384, 768]], [0, 1, 2, 3]),
    ('mask2former_focalnet_l_coco_panoptic_100e', 'focalnet_t', [[96, 192, 384, 768]],
     [0, 1, 2, 3]),
])
def test_channels_and_maps_follow(name, backbone, channels, indices, experiment):
    cfg = experiment(name)
    use_backbone(cfg, backbone)
    assert channels_in(cfg) == channels
    net, maps = built(cfg.model.backbone, cfg.default_scope, backbone)
    assert list(net.out_indices) == indices
    assert [dim for dim, _ in maps] == (channels[0] if isinstance(channels[0], list) else
                                        [channels[0]] * len(indices))


def test_a_pyramid_has_the_strides_of_what_was_there(experiment):
    for name, scales in (('demo/maskrcnn_focalnet', [4, 2, 1, 0.5]),
                         ('demo/retinanet_focalnet', [2, 1, 0.5]), ('detr_focalnet_t_50e', [0.5])):
        cfg = experiment(name)
        use_backbone(cfg, 'LocalViT')
        assert cfg.model.neck[0].type == 'SimplePyramid' and cfg.model.neck[0].scales == scales
    use_backbone(cfg, 'LocalViT')  # and again: it does not pile up
    assert len(cfg.model.neck) == 2 and cfg.model.neck[0].scales == scales


def test_what_the_images_are_normalised_with(experiment, small, tmp_path):
    name = small('convnext')
    folder = name.removeprefix('hf:').removesuffix('/config.json')
    (tmp_path / 'convnext' / 'preprocessor_config.json').write_text(json.dumps(dict(
        image_mean=[0.5, 0.25, 0.5], image_std=[0.5, 0.5, 0.25], do_flip_channel_order=True)))
    cfg = experiment('maskrcnn_focalnet_t_1x')
    use_backbone(cfg, f'hf:{folder}')
    images = cfg.model.data_preprocessor
    assert images.mean == [127.5, 63.75, 127.5] and images.std == [127.5, 127.5, 63.75]
    assert images.bgr_to_rgb is False and images.pad_size_divisor == 32
    use_backbone(cfg, 'focalnet_t')
    assert {key: images[key] for key in IMAGENET} == IMAGENET


def test_the_config_needs_no_other_file(experiment, small, tmp_path):
    """Nor the one that the backbone was named by."""
    cfg = experiment('maskrcnn_focalnet_t_1x')
    use_backbone(cfg, small('dinov2'), {'model.backbone.frozen_stages': 1, 'load_from': None})
    cfg.dump(tmp_path / 'config.py')
    (tmp_path / 'dinov2' / 'config.json').unlink()
    model = Config.fromfile(tmp_path / 'config.py', import_custom_modules=False).model
    assert model.backbone.frozen_stages == 1 and model.backbone.get('pretrained') is None
    net = MODELS.build(model.backbone)
    assert net.config.patch_size == 14 and net.strides == (16, ) * 4


@pytest.mark.parametrize('backbone, words', [
    ('focalnet_q', 'did you mean focalnet_'), ('LocalVit', 'did you mean LocalViT'),
    ('zoo:resnet', 'before the colon is timm or hf'), ('hf:no/such/config.json', 'no file or fold'),
    ('SimplePyramid', "missing 1 required positional argument: 'in_channels'"),
])
def test_a_wrong_name_is_one_message(backbone, words, experiment):
    if backbone.startswith('hf'):
        pytest.importorskip('transformers')
    with pytest.raises(UserError, match=words):
        use_backbone(experiment('maskrcnn_focalnet_t_1x'), backbone)


def test_maps_that_are_not_to_be_had(experiment):
    cfg = experiment('maskrcnn_focalnet_t_1x')
    with pytest.raises(UserError, match=r'the strides \[8, 16, 32\], .* needs \[4, 8, 16, '):
        use_backbone(cfg, 'Container', {'model.backbone.out_indices': [1, 2, 3]})


def test_every_variant_can_be_named():
    known = variants('mmdet')
    assert {'focalnet_t', 'focalnet_h', 'container_light', 'localvit_t2t', 'resnet50'} <= set(known)
    assert known['focalnet_t'].stem == 'maskrcnn_focalnet_t_1x'
    assert variants('mmseg')['swin_t'].stem == 'upernet_swin_t_160k'
    mentioned = [path.stem for path in CONFIGS.glob('*.py')]
    assert all(backbones.EXPERIMENT.fullmatch(name) for name in mentioned)


def test_what_is_not_decayed(experiment):
    """Norms whatever they are called, positions and tokens; where the recipe spares its own."""
    net = torch.nn.Module()
    net.bn1, net.ln = torch.nn.BatchNorm2d(4), torch.nn.LayerNorm(4)
    net.norm, net.conv = torch.nn.LayerNorm(4), torch.nn.Conv2d(4, 4, 1)
    net.position_embeddings = torch.nn.Parameter(torch.zeros(1, 4, 4))
    cfg = experiment('maskrcnn_focalnet_t_1x')
    before = copy.deepcopy(cfg.optim_wrapper.paramwise_cfg.custom_keys.to_dict())
    assert spare_from_decay(cfg, net) == 5
    after = cfg.optim_wrapper.paramwise_cfg.custom_keys
    assert set(after) - set(before) == {f'backbone.{name}' for name in (
        'bn1.weight', 'bn1.bias', 'ln.weight', 'ln.bias', 'position_embeddings')}
    assert spare_from_decay(cfg, net) == 0  # they are spared now

    cfg = experiment('mask2former_focalnet_l_ade20k_160k')
    spare_from_decay(cfg, net)
    rule = cfg.optim_wrapper.paramwise_cfg.custom_keys['backbone.bn1.weight']
    assert rule == dict(lr_mult=0.1, decay_mult=0.)  # and still at the backbone's rate

    cfg = experiment('detr_focalnet_t_50e')  # decays all alike
    assert spare_from_decay(cfg, net) == 0
