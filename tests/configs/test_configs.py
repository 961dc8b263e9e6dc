"""Every experiment loads and builds, and is the one that the papers describe."""
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmdet.structures.bbox import get_box_tensor
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, METRICS, MODELS, PARAM_SCHEDULERS, TRANSFORMS, DefaultScope

from downstream.data.loading import LoadImage

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
EXPERIMENTS = sorted(
    path.relative_to(CONFIGS).with_suffix('').as_posix() for path in CONFIGS.rglob('*.py')
    if path.relative_to(CONFIGS).parts[0] != '_base_')

# Parameters (millions) as in the authors' README, but for Mask R-CNN with T, printed as 48.8: their
# released model has 49.4.
MASK_RCNN_PARAMS = {'t': 49.4, 't_srf': 48.6, 's': 72.3, 's_srf': 70.8, 'b': 111.4, 'b_srf': 109.4}
UPERNET_PARAMS = {'t': 61, 't_srf': 61, 's': 84, 's_srf': 83, 'b': 126, 'b_srf': 124}
FOCALNETS = [
    (f'{method}_focalnet_{backbone}_{schedule}', backbone, schedule)
    for method, schedules in (('maskrcnn', ('1x', '3x')), ('upernet', ('160k',)))
    for backbone in MASK_RCNN_PARAMS for schedule in schedules
]


def scoped(cfg, scope):
    """`cfg`, to be built in mmdet's or mmseg's registry."""
    return dict(cfg, _scope_=scope)


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_builds(load, build, name):
    assert load(name).default_scope in ('mmdet', 'mmseg')
    build(name)
    # Under upstream's name stands our loader: it names the file that it cannot read.
    assert TRANSFORMS.get('LoadImageFromFile') is LoadImage


@pytest.mark.parametrize(('name', 'backbone', 'schedule'), FOCALNETS)
def test_focalnet(build, name, backbone, schedule):
    model = build(name)
    depth = 6 if backbone[0] == 't' else 18
    levels = 2 if backbone.endswith('srf') else 3
    width = 128 if backbone[0] == 'b' else 96
    shapes = {key: tuple(value.shape) for key, value in model.backbone.state_dict().items()}
    for stage, blocks in enumerate((2, 2, depth, 2)):
        for block in range(blocks):
            prefix = f'layers.{stage}.blocks.{block}.modulation.focal_layers'
            kernels = [shape for key, shape in shapes.items() if key.startswith(f'{prefix}.')]
            channels = width * 2**stage
            assert kernels == [(channels, 1, k, k) for k in (9, 11, 13)[:levels]]
        assert f'layers.{stage}.blocks.{blocks}.norm1.weight' not in shapes  # no more blocks

    params = sum(p.numel() for p in model.parameters()) / 1e6
    if schedule == '160k':
        assert params == pytest.approx(UPERNET_PARAMS[backbone], abs=0.6)  # printed as integers
    else:  # within 0.2 % of what is printed with one decimal
        printed = MASK_RCNN_PARAMS[backbone]
        assert abs(params - printed) <= 2e-3 * printed + 0.05


@pytest.mark.parametrize(('name', 'millions'), [  # as in the authors' README and checkpoints
    ('cascade_maskrcnn_focalnet_t_3x', 87.10),
    ('atss_focalnet_t_3x', 37.21),
    ('sparsercnn_focalnet_t_3x', 111.22),
])
def test_focalnet_in_the_strongest_heads(build, name, millions):
    params = sum(p.numel() for p in build(name).parameters()) / 1e6
    assert params == pytest.approx(millions, abs=0.005)
    kernels = [layer.blocks[0].modulation.focal_layers[0][0].kernel_size[0]
               for layer in build(name).backbone.layers]
    assert kernels == [11, 9, 9, 7]


def learning_rates(cfg, iterations, epoch_length=None):
    """The rate of each iteration, stepped as mmengine's ParamSchedulerHook does."""
    optimizer = torch.optim.AdamW(
        [torch.nn.Parameter(torch.zeros(1))], lr=cfg.optim_wrapper.optimizer.lr)
    schedulers = [
        PARAM_SCHEDULERS.build(scheduler, default_args=dict(optimizer=optimizer))
        for scheduler in cfg.param_scheduler
    ]
    rates = []
    for iteration in range(iterations):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in schedulers:
            if not scheduler.by_epoch or (iteration + 1) % epoch_length == 0:
                scheduler.step()
    return rates


@pytest.mark.parametrize(('schedule', 'epochs', 'steps'), [
    ('1x', 12, (9, 11)), ('3x', 36, (27, 33))])
def test_detection_schedule(load, schedule, epochs, steps):
    cfg = load(f'maskrcnn_focalnet_t_{schedule}')
    assert cfg.train_cfg == dict(
        type='EpochBasedTrainLoop', max_epochs=epochs, val_interval=1)
    length = 600
    rates = learning_rates(cfg, epochs * length, length)
    assert rates[0] == pytest.approx(1e-7)
    # mmdet 2.x reached the full rate at iteration 500, mmengine at 499.
    assert rates[250] == pytest.approx(1e-4 * (0.001 + 0.999 * 250 / 499))
    for epoch in range(epochs):
        expected = 1e-4 * 0.1**sum(epoch >= step for step in steps)
        first = 500 if epoch == 0 else epoch * length
        assert rates[first:(epoch + 1) * length] == pytest.approx(
            [expected] * ((epoch + 1) * length - first)), epoch


def test_segmentation_schedule(load):
    cfg = load('upernet_focalnet_t_160k')
    assert cfg.train_cfg == dict(
        type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
    rates = np.array(learning_rates(cfg, 160000))
    # mmseg 0.x: base * (1 - i / 160000), times the warm-up from 1e-6 over 1500 iterations.
    i = np.arange(160000)
    warm_up = np.minimum(1., 1 - (1 - i / 1500) * (1 - 1e-6))
    expected = 6e-5 * (1 - i / 160000) * warm_up
    assert rates[0] == pytest.approx(6e-11)
    np.testing.assert_allclose(rates, expected, rtol=0, atol=6e-5 * 1e-3)
    assert rates[-1] < 6e-5 * 1e-4


def test_runtime(load):
    for name, by_epoch, best in (('maskrcnn_focalnet_t_1x', True, 'coco/bbox_mAP'),
                                 ('upernet_focalnet_t_160k', False, 'mIoU')):
        cfg = load(name)
        assert cfg.custom_imports.imports == ['backbones', 'downstream']
        checkpoint = cfg.default_hooks.checkpoint
        assert checkpoint.get('by_epoch', True) == cfg.log_processor.by_epoch == by_epoch
        assert checkpoint.save_best == best
        assert 1 < checkpoint.max_keep_ckpts <= 5
        assert (cfg.resume, cfg.load_from) == (False, None)
        assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=None)


@pytest.fixture
def coco_config(load, tmp_path, monkeypatch):
    """Mask R-CNN's config on a COCO of a 640x480 image and a 1600x300 panorama, a box in each."""
    annotations = dict(images=[], annotations=[], categories=[dict(id=1, name='person')])
    for i, (width, height) in enumerate(((640, 480), (1600, 300)), 1):
        annotations['images'].append(
            dict(id=i, file_name=f'{i}.jpg', width=width, height=height))
        x, y, w, h = box = [100, 50, 200, 100]
        annotations['annotations'].append(dict(
            id=i, image_id=i, category_id=1, iscrowd=0, bbox=box, area=w * h,
            segmentation=[[x, y, x + w, y, x + w, y + h, x, y + h]]))
        for split in ('train2017', 'val2017'):
            (tmp_path / split).mkdir(exist_ok=True)
            image = np.zeros((height, width, 3), np.uint8)
            image[y:y + h, x:x + w] = 255
            cv2.imwrite(str(tmp_path / split / f'{i}.jpg'), image)
    (tmp_path / 'annotations').mkdir()
    for split in ('train2017', 'val2017'):
        (tmp_path / f'annotations/instances_{split}.json').write_text(json.dumps(annotations))
    monkeypatch.setenv('COCO_ROOT', str(tmp_path))
    return load('maskrcnn_focalnet_t_1x')


@pytest.fixture
def ade20k_config(load, tmp_path, monkeypatch):
    """UPerNet's config on an ADE20K of one 640x480 image; its labels are 0 (nothing) to 150."""
    for split in ('training', 'validation'):
        for kind in ('images', 'annotations'):
            (tmp_path / kind / split).mkdir(parents=True)
        cv2.imwrite(str(tmp_path / f'images/{split}/1.jpg'), np.zeros((480, 640, 3), np.uint8))
        labels = np.broadcast_to(np.arange(640) * 151 // 640, (480, 640)).astype(np.uint8)
        cv2.imwrite(str(tmp_path / f'annotations/{split}/1.png'), labels)
    monkeypatch.setenv('ADE20K_ROOT', str(tmp_path))
    return load('upernet_focalnet_t_160k')


@pytest.fixture(autouse=True)
def repeatable():
    np.random.seed(0)


def build_dataset(cfg, dataset_cfg, **changes):
    # Transforms inside transforms are looked up in the default scope, as a Runner sets it.
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return DATASETS.build(dict(dataset_cfg, **changes))


@pytest.mark.parametrize('end', ['', '/'])
def test_roots_from_environment(load, coco_config, ade20k_config, monkeypatch, end):
    for variable, cfg, name in (('COCO_ROOT', coco_config, 'maskrcnn_focalnet_t_1x'),
                                ('ADE20K_ROOT', ade20k_config, 'upernet_focalnet_t_160k')):
        monkeypatch.setenv(variable, cfg.data_root + end)
        cfg = load(name)
        for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
            sample = build_dataset(cfg, loader.dataset)[0]['data_samples']
            assert Path(sample.img_path).is_file()
        assert Path(cfg.val_evaluator.get('ann_file', cfg.data_root)).exists()


def test_roots_without_environment(load, monkeypatch):
    for variable, name, root in (
            ('COCO_ROOT', 'maskrcnn_focalnet_t_1x', 'data/coco'),
            ('ADE20K_ROOT', 'upernet_focalnet_t_160k', 'data/ade/ADEChallengeData2016')):
        monkeypatch.delenv(variable, raising=False)
        for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
            assert load(name)[loader].dataset.data_root == root


def test_coco_training_pipeline(coco_config):
    cfg = coco_config
    dataset = build_dataset(cfg, cfg.train_dataloader.dataset)
    assert len(dataset) == 2
    short_sides, flips, aspects = set(), set(), set()
    for _ in range(100):
        packed = dataset[0]
        sample = packed['data_samples']
        height, width = sample.img_shape
        assert packed['inputs'].shape == (3, height, width)
        assert max(height, width) <= 1333
        short_sides.add(min(height, width))
        flips.add(sample.flip)
        aspects.add(round(width / height, 2))
        boxes = get_box_tensor(sample.gt_instances.bboxes)
        assert len(boxes) == len(sample.gt_instances.masks) <= 1  # a crop may miss the object
        assert (boxes >= 0).all() and (boxes <= torch.tensor([width, height] * 2)).all()
    assert short_sides == set(range(480, 801, 32))
    assert flips == {True, False}
    assert 1.33 in aspects and len(aspects) > 10  # without and with the crop

    shapes = [dataset[1]['data_samples'].img_shape for _ in range(20)]
    assert max(width for _, width in shapes) == 1333  # the panorama's long side rules
    assert all(max(shape) <= 1333 for shape in shapes)


@pytest.mark.parametrize(('name', 'short_sides'), [
    ('maskrcnn_container_light_1x', {800}), ('retinanet_container_light_1x', {800}),
    ('detr_container_light_50e', set(range(640, 801, 32)))])
def test_coco_training_without_crops(load, coco_config, name, short_sides):
    cfg = load(name)
    dataset = build_dataset(cfg, cfg.train_dataloader.dataset)
    samples = [dataset[0]['data_samples'] for _ in range(40)]
    assert {min(sample.img_shape) for sample in samples} == short_sides
    assert {round(max(s.img_shape) / min(s.img_shape), 2) for s in samples} == {1.33}  # all of it
    assert {sample.flip for sample in samples} == {True, False}
    assert all(len(sample.gt_instances) == 1 for sample in samples)
    assert ('masks' in samples[0].gt_instances) == name.startswith('maskrcnn')


def test_coco_test_pipeline_and_evaluator(coco_config):
    cfg = coco_config
    assert cfg.val_dataloader == cfg.test_dataloader
    dataset = build_dataset(cfg, cfg.val_dataloader.dataset)
    assert [dataset[i]['inputs'].shape for i in range(2)] == [(3, 800, 1067), (3, 250, 1333)]
    with DefaultScope.overwrite_default_scope('mmdet'):
        evaluator = METRICS.build(cfg.val_evaluator)
    assert evaluator.metrics == ['bbox', 'segm']
    assert evaluator._coco_api.get_img_ids() == [1, 2]


def test_coco_inputs_are_normalised_rgb_padded_to_32(coco_config):
    cfg = coco_config
    preprocess = MODELS.build(scoped(cfg.model.data_preprocessor, 'mmdet'))
    batch = pseudo_collate([build_dataset(cfg, cfg.val_dataloader.dataset)[0]])
    batch['inputs'][0] = torch.zeros_like(batch['inputs'][0])
    batch['inputs'][0][0] = 255  # blue: files are read as BGR
    inputs = preprocess(batch)['inputs']
    assert inputs.shape == (1, 3, 800, 1088)
    expected = [-123.675 / 58.395, -116.28 / 57.12, (255 - 103.53) / 57.375]
    torch.testing.assert_close(inputs[0, :, 0, 0], torch.tensor(expected))


def test_coco_test_time_augmentation(coco_config):
    cfg = coco_config
    dataset = build_dataset(cfg, cfg.test_dataloader.dataset, pipeline=cfg.tta_pipeline)
    views = {(view.img_shape, view.flip) for view in dataset[0]['data_samples']}
    shapes = (400, 533), (800, 1067), (1200, 1600)
    assert views == {(shape, flip) for shape in shapes for flip in (True, False)}


def test_ade20k_training_pipeline(ade20k_config):
    cfg = ade20k_config
    dataset = build_dataset(cfg, cfg.train_dataloader.dataset)
    sizes, flips, labels = set(), set(), set()
    for _ in range(60):
        packed = dataset[0]
        sample = packed['data_samples']
        sizes.add(sample.img_shape)
        flips.add(sample.flip)
        labels.update(sample.gt_sem_seg.data.unique().tolist())
        assert sample.gt_sem_seg.data.shape[1:] == packed['inputs'].shape[1:]
    # A short side of 512 x (0.5 to 2), cut to at most 512 x 512.
    assert (512, 512) in sizes and all(max(size) <= 512 for size in sizes)
    assert min(min(size) for size in sizes) in range(256, 300)
    assert flips == {True, False}
    assert labels == {*range(150), 255}  # 0 in the file is 'ignore', 1 to 150 are the classes


def test_ade20k_training_inputs_are_padded_to_the_crop(ade20k_config):
    cfg = ade20k_config
    dataset = build_dataset(cfg, cfg.train_dataloader.dataset)
    batch = pseudo_collate([dataset[0] for _ in range(8)])
    assert {image.shape for image in batch['inputs']} != {(3, 512, 512)}
    preprocess = MODELS.build(scoped(cfg.model.data_preprocessor, 'mmseg'))
    padded = preprocess(batch, training=True)
    assert padded['inputs'].shape == (8, 3, 512, 512)
    assert {tuple(s.gt_sem_seg.shape) for s in padded['data_samples']} == {(512, 512)}


def test_ade20k_test_pipelines(ade20k_config):
    cfg = ade20k_config
    assert cfg.val_dataloader == cfg.test_dataloader
    dataset = build_dataset(cfg, cfg.test_dataloader.dataset)
    assert dataset[0]['inputs'].shape == (3, 512, 683)
    assert dataset[0]['data_samples'].gt_sem_seg.shape == (480, 640)

    dataset = build_dataset(cfg, cfg.test_dataloader.dataset, pipeline=cfg.tta_pipeline)
    views = {(min(view.img_shape), view.flip) for view in dataset[0]['data_samples']}
    short_sides = 256, 384, 512, 640, 768, 896  # 512 x 0.5 to 1.75
    assert views == {(short, flip) for short in short_sides for flip in (True, False)}


def test_upernet_trains_in_one_process_on_a_cpu(load):
    """SyncBN needs no process group there: torch computes the ordinary batch norm."""
    model = load('upernet_focalnet_t_160k').model
    features = [torch.randn(2, 96 * 2**i, 16 // 2**i, 16 // 2**i) for i in range(4)]
    for head, size in ((model.decode_head, 16), (model.auxiliary_head, 4)):
        head = MODELS.build(scoped(head, 'mmseg')).train()
        assert head(features).shape == (2, 150, size, size)
