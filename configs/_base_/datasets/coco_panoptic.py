# COCO 2017, panoptic: 80 kinds of things, then 53 of stuff. COCO_ROOT is the folder that holds
# annotations/, train2017/, val2017/; the maps lie in annotations/panoptic_{train,val}2017/.
_base_ = '../default_runtime.py'

default_scope = 'mmdet'
data_root = '{{$COCO_ROOT:data/coco}}'
backend_args = None

# Large scale jitter: a tenth to twice of 1024, then a crop of 1024.
image_size = (1024, 1024)
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='LoadPanoptic', backend_args=backend_args),
    dict(type='RandomFlip', prob=0.5),
    dict(type='RandomResize', scale=image_size, ratio_range=(0.1, 2.0), keep_ratio=True),
    dict(
        type='RandomCrop',
        crop_type='absolute',
        crop_size=image_size,
        recompute_bbox=True,
        allow_negative_crop=True),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    # After the resize: predictions are compared with ground truth at the original size.
    dict(type='LoadPanoptic', backend_args=backend_args),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]

train_dataloader = dict(
    batch_size=2,  # a GPU; the recipes' 16 are 8 GPUs x 2
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='CocoPanopticDataset',
        data_root=data_root,
        ann_file='annotations/panoptic_train2017.json',
        data_prefix=dict(img='train2017/', seg='annotations/panoptic_train2017/'),
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        pipeline=train_pipeline,
        backend_args=backend_args))
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoPanopticDataset',
        data_root=data_root,
        ann_file='annotations/panoptic_val2017.json',
        data_prefix=dict(img='val2017/', seg='annotations/panoptic_val2017/'),
        test_mode=True,
        pipeline=test_pipeline,
        backend_args=backend_args))
test_dataloader = val_dataloader

val_evaluator = dict(
    type='PanopticQuality',
    ann_file=data_root + '/annotations/panoptic_val2017.json',
    seg_prefix=data_root + '/annotations/panoptic_val2017/')
test_evaluator = val_evaluator

# The recipes count iterations, not epochs.
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=5000, save_best='coco_panoptic/PQ', rule='greater'),
    visualization=dict(type='DetVisualizationHook'))
log_processor = dict(by_epoch=False)
visualizer = dict(
    type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
