"""A step and a test image of a chosen experiment a head and family; and what must be noticed."""
from pathlib import Path

import pytest
from mmengine.config import Config

from downstream.data.generated import make_demo_data
from downstream.scoring import trials

CONFIGS = Path(__file__).resolve().parents[3] / 'configs'


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp('demo') / 'set'
    make_demo_data(out, train=2, val=1)
    return out


@pytest.fixture(autouse=True)
def generated(data, monkeypatch):
    monkeypatch.setenv('DEMO_ROOT', str(data))
    for variable in ('COCO_ROOT', 'ADE20K_ROOT'):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize('name', [
    'maskrcnn_container_light_1x', 'retinanet_localvit_pvt_1x', 'upernet_localvit_swin_160k',
    'maskrcnn_localvit_tnt_1x', 'maskrcnn_localvit_t2t_1x', 'upernet_localvit_s_160k',
    'detr_resnet50_50e', 'retinanet_focalnet_t_1x'])
def test_experiment_runs(name):
    found = trials.check_experiment(CONFIGS / f'{name}.py', factor=0.125)
    assert 'M parameters, loss' in found


@pytest.mark.parametrize('name', [
    'cascade_maskrcnn_focalnet', 'atss_focalnet', 'sparsercnn_focalnet', 'dino_focalnet',
    'mask2former_semantic_focalnet', 'mask2former_panoptic_focalnet'])
def test_small_versions_of_the_strongest_heads_run(name):
    found = trials.check_experiment(CONFIGS / 'demo' / f'{name}.py', factor=1.)
    assert 'M parameters, loss' in found


def test_a_parameter_without_gradient_is_noticed(tmp_path):
    """RetinaNet that leaves the first of four maps, and so that map's norm, unused."""
    config = tmp_path / 'unused.py'
    config.write_text(f"""_base_ = {str(CONFIGS / 'retinanet_focalnet_t_1x.py')!r}
model = dict(backbone=dict(out_indices=(0, 1, 2, 3), depths=(1, 1, 1, 1)),
             neck=dict(in_channels=[96, 192, 384, 768], start_level=1))
""")
    with pytest.raises(AssertionError, match='backbone.norm0.weight gets no gradient'):
        trials.check_experiment(config, factor=0.125)


def test_every_size_in_a_pipeline_shrinks():
    cfg = Config.fromfile(CONFIGS / 'maskrcnn_focalnet_t_1x.py')
    small = trials.shrink(cfg.train_dataloader.dataset.pipeline, 0.25)
    first, second = small[3]['transforms']
    assert first[0]['scales'][0] == (120, 333) and first[0]['scales'][-1] == (200, 333)
    assert second[1]['crop_size'] == (96, 150)
    cfg = Config.fromfile(CONFIGS / 'upernet_focalnet_t_160k.py')
    small = trials.shrink(cfg.train_dataloader.dataset.pipeline, 0.25)
    assert small[2]['scale'] == (512, 128) and small[2]['ratio_range'] == [0.5, 2.0]
    cfg = Config.fromfile(CONFIGS / 'mask2former_focalnet_l_ade20k_160k.py')
    small = trials.shrink(cfg.train_dataloader.dataset.pipeline, 0.25)
    assert small[2]['scales'][0] == 80 and small[2]['max_size'] == 640
    cfg = Config.fromfile(CONFIGS / 'mask2former_focalnet_l_coco_panoptic_100e.py')
    preprocessor = trials.shrink(cfg.model.data_preprocessor, 0.25)
    assert preprocessor['batch_augments'][0]['size'] == (256, 256)
