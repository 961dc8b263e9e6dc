# Can Mask R-CNN with FocalNet-T, from random weights, memorise a few real images? Make them with
# tools/subset_coco.py; results in docs/measured.md. Reduced resolution, so that a CPU will do.
_base_ = '../maskrcnn_focalnet_t_1x.py'

scale = (448, 320)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=scale, keep_ratio=True),
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
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    sampler=dict(type='InfiniteSampler'),
    batch_sampler=None,
    dataset=dict(filter_cfg=None, pipeline=train_pipeline))
val_dataloader = dict(num_workers=1, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

# Four images have few objects: fewer samples an image, since the heads take most of the time.
model = dict(
    backbone=dict(drop_path_rate=0.),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=500, max_per_img=200),
        rcnn=dict(sampler=dict(num=64))))
train_cfg = dict(
    _delete_=True, type='IterBasedTrainLoop', max_iters=150, val_interval=50)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=3e-4, weight_decay=0.),
    clip_grad=dict(max_norm=5.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=20),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=150, T_max=150, eta_min=1e-5),
]
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=50, save_best=None))
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
