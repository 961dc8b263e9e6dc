# Mask R-CNN with a small FocalNet on the generated data set, from scratch (`make demo`).
_base_ = [
    '../_base_/models/maskrcnn.py',
    '../_base_/datasets/demo_coco.py',
    '../_base_/schedules/demo.py',
]

model = dict(
    backbone=dict(
        type='FocalNet',
        embed_dim=32,
        depths=(1, 1, 2, 1),
        focal_levels=(2, 2, 2, 2),
        focal_windows=(5, 5, 5, 5),
        drop_path_rate=0.),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=64),
    rpn_head=dict(
        in_channels=64,
        feat_channels=64,
        anchor_generator=dict(scales=[4])),  # objects of 20 to 70 pixels
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        bbox_head=dict(in_channels=64, fc_out_channels=256, num_classes=4),
        mask_roi_extractor=dict(out_channels=64),
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64, num_classes=4)),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=500, max_per_img=200),
        rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=200)))
