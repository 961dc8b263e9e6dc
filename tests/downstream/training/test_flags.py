"""--weights: which published weights a config's backbone takes, and that it starts from them."""
from pathlib import Path

import pytest
import torch
from commands import command, refused
from mmengine.config import Config
from mmengine.registry import MODELS

from backbones import weights
from downstream.errors import UserError
from downstream.training.flags import use_weights

CONFIGS = Path(__file__).resolve().parents[3] / 'configs'
OURS = 'FocalNet', 'Container', 'LocalViT'
SMALL = '''
model = dict(backbone=dict(
    _delete_=True, type='FocalNet', embed_dim=8, depths=(1, 1, 1, 1), init_cfg=None))
'''


def test_auto_for_every_experiment():
    """Each knows its ImageNet weights; LocalViT on T2T has none, upstream's have other ways."""
    found = {}
    for path in sorted(CONFIGS.glob('*.py')):
        cfg = Config.fromfile(path)
        backbone = cfg.model.backbone
        if not backbone.type.startswith(OURS):
            continue
        try:
            use_weights(cfg, 'auto')
        except UserError as error:
            assert path.stem == 'maskrcnn_localvit_t2t_1x'
            assert 'no ImageNet weights were published for LocalViT on T2T-ViT' in str(error)
            continue
        assert backbone.init_cfg.type == 'Pretrained'
        found[path.stem] = weights.entry_of(backbone.init_cfg.checkpoint) and (
            backbone.init_cfg.checkpoint)
    for config, name in {
            'maskrcnn_focalnet_b_srf_3x': 'focalnet_base_srf',
            'atss_focalnet_t_3x': 'focalnet_tiny_lrf',
            'upernet_focalnet_s_160k': 'focalnet_small_lrf',
            'dino_focalnet_l_4scale_36e_detrex': 'focalnet_large_fl3',
            'dino_focalnet_l_5scale_12e_detrex': 'focalnet_large_fl4',
            'dino_focalnet_h_5scale_12e': 'focalnet_huge_fl4',
            'mask2former_focalnet_l_ade20k_160k': 'focalnet_large_fl3',
            'retinanet_localvit_pvt_1x': 'localvit_pvt', 'upernet_localvit_s_160k': 'localvit_s',
            'maskrcnn_localvit_tnt_1x': 'localvit_tnt',
            'detr_container_light_50e': 'container_light'}.items():
        assert found[config] == name
    assert all(name for name in found.values())


def test_auto_where_there_is_nothing_to_know():
    cfg = Config.fromfile(CONFIGS / 'maskrcnn_swin_t_1x.py')
    with pytest.raises(UserError, match='knows the weights of CONTAINER, FocalNet, LocalViT, not '
                                        'of SwinTransformer: name a file, or say --weights none'):
        use_weights(cfg, 'auto')
    cfg = Config.fromfile(CONFIGS / 'maskrcnn_resnet50_1x.py')
    kept = dict(cfg.model.backbone.init_cfg)
    assert use_weights(cfg, 'auto') == [
        f'--weights auto: {kept["checkpoint"]}, as the config says.']
    assert cfg.model.backbone.init_cfg == kept
    use_weights(cfg, 'none')
    assert cfg.model.backbone.init_cfg is None
    with pytest.raises(UserError, match='of the config has no backbone'):
        use_weights(Config(dict(model=dict(type='X'))), 'auto')


def test_training_from_a_name(detection, server, monkeypatch, elsewhere):
    """Fetched once; a misspelt one and no weights at all are told before anything is built."""
    Path('small.py').write_text(f"_base_ = '{detection.name}'\n{SMALL}")
    model = MODELS.build(Config.fromfile('small.py').model.backbone)
    state = {name: torch.full_like(value, 0.01) for name, value in model.state_dict().items()}
    torch.save(dict(model=state), 'file.pth')
    server.files['/w.pth'] = Path('file.pth').read_bytes()
    entry = dict(sources=[f'{server.url}/w.pth'],
                 backbone='FocalNet (8 channels, 1 blocks in stage 3) srf')
    monkeypatch.setattr(weights, 'known', lambda: dict(small=entry))
    options = ['--cfg-options', 'train_cfg.max_iters=1', 'optim_wrapper.optimizer.lr=0.',
               'optim_wrapper.optimizer.weight_decay=0.', 'val_dataloader=None', 'val_cfg=None',
               'val_evaluator=None', 'default_hooks.checkpoint.interval=1']
    train = command('train').main
    assert 'did you mean small?' in refused(train, 'small.py', '--weights', 'smal')
    entry['backbone'] = 'FocalNet (8 channels, 1 blocks in stage 3) fl3'
    train(['small.py', '--weights', 'auto', *options])
    trained = torch.load('work_dirs/small/iter_1.pth', weights_only=False)
    assert trained['state_dict']['backbone.layers.0.blocks.0.mlp.fc1.weight'].eq(0.01).all()
    assert 'checkpoint=\'small\'' in trained['meta']['cfg'] and server.paths == ['/w.pth']

    entry['sources'] = ['http://127.0.0.1:1/w.pth']
    weights.file_of('small').unlink()
    said = refused(train, 'small.py', '--work-dir', 'offline', '--weights', 'small')
    assert 'Download one of these where you can:\n  http://127.0.0.1:1/w.pth' in said
    assert not list(Path('offline').glob('2*'))  # no run was begun
