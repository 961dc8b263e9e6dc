"""Tiny data sets and experiments, in COCO's and ADE20K's layouts, that train in a second."""
import json
import logging
import os
import signal
from pathlib import Path

os.environ.setdefault('GOMP_SPINCOUNT', '20000')  # as tools/train.py, before torch is loaded
# pytest -n: its processes share the cores, and so do the commands that they start.
workers = int(os.environ.get('PYTEST_XDIST_WORKER_COUNT', 1))
if workers > 1:
    os.environ.setdefault('OMP_NUM_THREADS', str(max(1, (os.cpu_count() or 1) // workers)))

import numpy as np
import pytest
import torch
from PIL import Image
from servers import serving

COMMON = '''
custom_imports = dict(imports=['downstream'], allow_failed_imports=False)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=2, val_interval=2)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(type='AmpOptimWrapper', loss_scale='dynamic', dtype='float16',
                     clip_grad=dict(max_norm=1.),
                     optimizer=dict(type='AdamW', lr=1e-3))
param_scheduler = [dict(type='LinearLR', start_factor=0.5, by_epoch=False, begin=0, end=4)]
auto_scale_lr = dict(enable=False, base_batch_size=16)
log_processor = dict(by_epoch=False)
env_cfg = dict(mp_cfg=dict(opencv_num_threads=1), dist_cfg=dict(backend='nccl'))
randomness = dict(seed=0)


def loader(train, **dataset):
    return dict(batch_size=2 if train else 1, num_workers=0,
                sampler=dict(type='InfiniteSampler' if train else 'DefaultSampler', shuffle=train),
                dataset=dict(**common, **dataset))


backbone = dict(type='ResNet', depth=18, base_channels=8, norm_cfg=dict(type='SyncBN'))
'''
DETECTION = COMMON + '''
default_scope = 'mmdet'
data_root = '{{$COCO_ROOT:data/coco}}'
common = dict(type='CocoDataset', data_root=data_root, metainfo=dict(classes=('disc', 'square')))
load = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=(64, 64))]
labels = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'flip', 'flip_direction')
pack = dict(type='PackDetInputs', meta_keys=keys)
pipeline = [load[0], labels, load[1], dict(type='RandomFlip', prob=0.5), pack]
test_pipeline = [*load, labels, dict(type='PackDetInputs', meta_keys=keys[:5])]
train_dataloader = loader(True, pipeline=pipeline, ann_file='annotations/train.json',
                          data_prefix=dict(img='train/'))
val_dataloader = loader(False, pipeline=test_pipeline, ann_file='annotations/val.json',
                        data_prefix=dict(img='val/'), test_mode=True)
test_dataloader = val_dataloader
val_evaluator = dict(type='CocoMetric', ann_file=data_root + '/annotations/val.json',
                     metric=['bbox', 'segm'])
test_evaluator = val_evaluator
nms = dict(type='nms', iou_threshold=0.5)
tta_model = dict(type='DetTTAModel', tta_cfg=dict(nms=nms, max_per_img=10))
tta_pipeline = [load[0], dict(type='TestTimeAug', transforms=[
    [load[1]], [dict(type='RandomFlip', prob=0.), dict(type='RandomFlip', prob=1.)], [pack]])]

cross_entropy = dict(type='CrossEntropyLoss', use_sigmoid=True)
assigner = dict(type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.5, min_pos_iou=0.)
sampler = dict(type='RandomSampler', num=8, pos_fraction=0.5)
coder = dict(type='DeltaXYWHBBoxCoder')
model = dict(
    type='MaskRCNN',
    data_preprocessor=dict(type='DetDataPreprocessor', pad_mask=True, pad_size_divisor=32),
    backbone=backbone,
    neck=dict(type='FPN', in_channels=[8, 16, 32, 64], out_channels=8, num_outs=4),
    rpn_head=dict(type='RPNHead', in_channels=8, feat_channels=8, bbox_coder=coder,
                  anchor_generator=dict(type='AnchorGenerator', scales=[8], ratios=[1.0],
                                        strides=[4, 8, 16, 32]), loss_cls=cross_entropy),
    roi_head=dict(
        type='StandardRoIHead',
        bbox_roi_extractor=dict(type='SingleRoIExtractor', out_channels=8,
                                roi_layer=dict(type='RoIAlign', output_size=7),
                                featmap_strides=[4, 8, 16, 32]),
        bbox_head=dict(type='Shared2FCBBoxHead', in_channels=8, fc_out_channels=8, num_classes=2,
                       bbox_coder=coder),
        mask_roi_extractor=dict(type='SingleRoIExtractor', out_channels=8,
                                roi_layer=dict(type='RoIAlign', output_size=14),
                                featmap_strides=[4, 8, 16, 32]),
        mask_head=dict(type='FCNMaskHead', num_convs=1, in_channels=8, conv_out_channels=8,
                       num_classes=2, loss_mask=dict(type='CrossEntropyLoss', use_mask=True))),
    train_cfg=dict(
        rpn=dict(assigner=assigner, sampler=dict(**sampler, add_gt_as_proposals=False),
                 allowed_border=-1, pos_weight=-1),
        rpn_proposal=dict(nms_pre=16, max_per_img=8, nms=dict(type='nms', iou_threshold=0.7),
                          min_bbox_size=0),
        rcnn=dict(assigner=assigner, sampler=dict(**sampler), mask_size=28, pos_weight=-1)),
    test_cfg=dict(
        rpn=dict(nms_pre=16, max_per_img=8, nms=dict(type='nms', iou_threshold=0.7),
                 min_bbox_size=0),
        rcnn=dict(score_thr=0.01, nms=nms, max_per_img=5,
                  mask_thr_binary=0.5)))
'''
SEGMENTATION = COMMON + '''
default_scope = 'mmseg'
data_root = '{{$ADE20K_ROOT:data/ade}}'
common = dict(type='ADE20KDataset', data_root=data_root,
              metainfo=dict(classes=('wall', 'building')))
load = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=(64, 64))]
pipeline = [load[0], dict(type='LoadLabels'), load[1], dict(type='PackSegInputs')]
test_pipeline = [*load, dict(type='LoadLabels'), dict(type='PackSegInputs')]
train_dataloader = loader(True, pipeline=pipeline,
                          data_prefix=dict(img_path='images/train', seg_map_path='labels/train'))
val_dataloader = loader(False, pipeline=test_pipeline,
                        data_prefix=dict(img_path='images/val', seg_map_path='labels/val'))
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
tta_model = dict(type='SegTTAModel')
tta_pipeline = [load[0], dict(type='TestTimeAug', transforms=[
    [load[1]], [dict(type='RandomFlip', prob=0.), dict(type='RandomFlip', prob=1.)],
    [dict(type='LoadLabels')], [dict(type='PackSegInputs')]])]

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', size=(64, 64)),
    backbone=backbone,
    decode_head=dict(type='FCNHead', in_channels=64, in_index=3, channels=8, num_convs=1,
                     num_classes=2, norm_cfg=dict(type='SyncBN')),
    train_cfg=dict(), test_cfg=dict(mode='whole'))
'''
HOOKS = '''
default_hooks = dict(
    timer=dict(type='IterTimerHook'), logger=dict(type='LoggerHook', interval=1),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=2),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='{0}VisualizationHook'))
visualizer = dict(type='{0}LocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
'''


@pytest.fixture(autouse=True, scope='session')
def interruptible():
    """What a shell puts into the background is begun with SIGINT ignored, and hands that on."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope='session')
def cache_of_its_own(tmp_path_factory):
    """What checks of data remember is not put where a person's is."""
    os.environ['DOWNSTREAM_CACHE'] = str(tmp_path_factory.mktemp('cache'))


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server of this machine (servers.py), and an empty cache for what comes from it."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'home'))
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """Some commands silence the libraries' logs, for their own process."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Run from another directory, on one thread: more would wait for each other on tiny maps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('LOCAL_RANK', '0')  # train.py sets it; monkeypatch takes it back
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def coco(tmp_path, monkeypatch):
    """Four images in COCO's layout; COCO_ROOT names it."""
    root = tmp_path / 'coco'
    rng = np.random.default_rng(0)
    for split in ('train', 'val'):
        names = [f'{split}{index}.jpg' for index in range(2)]
        for name in names:
            save_image(root / split / name, rng)
        images = [dict(id=i, file_name=name, width=64, height=64) for i, name in enumerate(names)]
        annotations = [dict(id=i + 1, image_id=i, category_id=7 + i, bbox=[8, 8, 40, 40], area=1600,
                            segmentation=[[8, 8, 48, 8, 48, 48, 8, 48]], iscrowd=0)
                       for i in range(2)]
        path = root / 'annotations' / f'{split}.json'
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(dict(
            images=images, annotations=annotations,
            categories=[dict(id=7, name='disc'), dict(id=8, name='square')])))
    monkeypatch.setenv('COCO_ROOT', str(root))
    return root


@pytest.fixture
def ade(tmp_path, monkeypatch):
    """Four images in ADE20K's layout; ADE20K_ROOT names it."""
    root = tmp_path / 'ade'
    rng = np.random.default_rng(0)
    for split in ('train', 'val'):
        for index in range(2):
            save_image(root / 'images' / split / f'{index}.jpg', rng)
            labels = np.ones((64, 64), np.uint8)
            labels[:, 32:] = 2
            path = root / 'labels' / split / f'{index}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(labels).save(path)
    monkeypatch.setenv('ADE20K_ROOT', str(root))
    return root


def save_image(path: Path, rng):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def detection(tmp_path, coco):
    """The config file of a tiny Mask R-CNN on coco."""
    path = tmp_path / 'tiny_maskrcnn.py'
    path.write_text(DETECTION + HOOKS.format('Det'))
    return path


@pytest.fixture
def segmentation(tmp_path, ade):
    """The config file of a tiny FCN on ade."""
    path = tmp_path / 'tiny_fcn.py'
    path.write_text(SEGMENTATION + HOOKS.format('Seg'))
    return path
