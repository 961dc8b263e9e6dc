# The generated data set (tools/make_demo_data.py), panoptic: 4 shapes on 3 textures.
_base_ = 'coco_panoptic.py'

data_root = '{{$DEMO_ROOT:work_dirs/demo/data}}/coco'
metainfo = dict(
    classes=('disc', 'square', 'triangle', 'star', 'grass', 'water', 'sand'),
    thing_classes=('disc', 'square', 'triangle', 'star'),
    stuff_classes=('grass', 'water', 'sand'),
    palette=[(231, 58, 60), (230, 200, 60), (200, 60, 231), (60, 231, 231), (60, 160, 60),
             (38, 119, 200), (222, 190, 125)])

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadPanoptic'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(160, 160), keep_ratio=True),
    dict(type='LoadPanoptic'),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]

# Epochs, as the other demos; COCO's own configs count iterations.
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    sampler=dict(type='DefaultSampler'),
    dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=train_pipeline))
val_dataloader = dict(
    num_workers=1,
    dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(
    ann_file=data_root + '/annotations/panoptic_val2017.json',
    seg_prefix=data_root + '/annotations/panoptic_val2017/')
test_evaluator = val_evaluator
default_hooks = dict(
    logger=dict(log_metric_by_epoch=True),
    checkpoint=dict(by_epoch=True, interval=1))
log_processor = dict(by_epoch=True)
