# RetinaNet with a small FocalNet on the generated data set, from scratch.
_base_ = [
    '../_base_/models/retinanet.py',
    '../_base_/datasets/demo_coco.py',
    '../_base_/schedules/demo.py',
]

model = dict(
    backbone=dict(
        type='FocalNet',
        embed_dim=32,
        depths=(1, 1, 2, 1),
        focal_levels=(3, 3, 3, 3),
        focal_windows=(9, 9, 9, 9),
        use_conv_embed=True,
        out_indices=(1, 2, 3),
        drop_path_rate=0.),
    neck=dict(in_channels=[64, 128, 256], out_channels=64),
    bbox_head=dict(num_classes=4, in_channels=64, feat_channels=64, stacked_convs=2))
train_pipeline = _base_.train_pipeline
train_pipeline[1] = dict(type='LoadAnnotations', with_bbox=True)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
