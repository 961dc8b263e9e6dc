# COCO 2017, boxes and masks. COCO_ROOT is the folder that holds annotations/, train2017/, val2017/.
_base_ = '../default_runtime.py'

default_scope = 'mmdet'
data_root = '{{$COCO_ROOT:data/coco}}'
backend_args = None

# DETR's multi-scale augmentation: a resize, or a resize, a random crop and a resize. Of a scale's
# two numbers the smaller is for the short side, the larger the limit of the long one.
scales = [(short, 1333) for short in range(480, 801, 32)]
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='RandomChoice',
        transforms=[
            [dict(type='RandomChoiceResize', scales=scales, keep_ratio=True)],
            [
                dict(
                    type='RandomChoiceResize',
                    scales=[(400, 1333), (500, 1333), (600, 1333)],
                    keep_ratio=True),
                dict(
                    type='RandomCrop',
                    crop_type='absolute_range',
                    crop_size=(384, 600),
                    allow_negative_crop=True),
                dict(type='RandomChoiceResize', scales=scales, keep_ratio=True),
            ],
        ]),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    # After the resize: predictions are compared with ground truth at the original size.
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]

train_dataloader = dict(
    batch_size=2,  # a GPU; the recipes' 16 are 8 GPUs x 2
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    # Landscape with landscape, portrait with portrait: less padding.
    batch_sampler=dict(type='AspectRatioBatchSampler'),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'),
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
        type='CocoDataset',
        data_root=data_root,
        ann_file='annotations/instances_val2017.json',
        data_prefix=dict(img='val2017/'),
        test_mode=True,
        pipeline=test_pipeline,
        backend_args=backend_args))
test_dataloader = val_dataloader

val_evaluator = dict(
    type='CocoMetric',
    ann_file=data_root + '/annotations/instances_val2017.json',
    metric=['bbox', 'segm'],
    backend_args=backend_args)
test_evaluator = val_evaluator

# Boxes of all views by NMS, then the mean of the masks that each view has of them. (mmdet's own
# DetTTAModel has none for masks.)
tta_model = dict(
    type='MaskTTAModel', tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100))
tta_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(
        type='TestTimeAug',
        transforms=[
            [
                dict(type='Resize', scale=scale, keep_ratio=True)
                for scale in [(666, 400), (1333, 800), (2000, 1200)]
            ],
            [dict(type='RandomFlip', prob=0.), dict(type='RandomFlip', prob=1.)],
            [
                dict(
                    type='PackDetInputs',
                    meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor',
                               'flip', 'flip_direction'))
            ],
        ]),
]

default_hooks = dict(
    checkpoint=dict(save_best='coco/bbox_mAP'),
    visualization=dict(type='DetVisualizationHook'))
visualizer = dict(
    type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
