# The generated data set (tools/make_demo_data.py), boxes and masks: 4 classes, 160 x 160 pixels.
_base_ = 'coco_instance.py'

data_root = '{{$DEMO_ROOT:work_dirs/demo/data}}/coco'
metainfo = dict(classes=('disc', 'square', 'triangle', 'star'))
scale = (160, 160)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
tta_pipeline = _base_.tta_pipeline
tta_pipeline[1]['transforms'][0] = [
    dict(type='Resize', scale=(side, side), keep_ratio=True) for side in (128, 160, 192)
]

train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=train_pipeline))
val_dataloader = dict(
    num_workers=1,
    dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + '/annotations/instances_val2017.json')
test_evaluator = val_evaluator
