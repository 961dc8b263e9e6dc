# ATSS with a small FocalNet on the generated data set, from scratch.
_base_ = [
    '../_base_/demo_focalnet.py',
    '../_base_/models/atss.py',
    '../_base_/datasets/demo_coco_boxes.py',
    '../_base_/schedules/demo.py',
]

model = dict(
    backbone=dict(out_indices=(1, 2, 3), **_base_.focalnet),
    neck=dict(in_channels=[64, 128, 256], out_channels=64),
    bbox_head=dict(num_classes=4, in_channels=64, feat_channels=64, stacked_convs=2))
