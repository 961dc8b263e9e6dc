# Mask R-CNN with a small FocalNet on the generated data set, from scratch (`make demo`).
_base_ = [
    '../_base_/demo_focalnet.py',
    '../_base_/models/maskrcnn.py',
    '../_base_/datasets/demo_coco.py',
    '../_base_/schedules/demo.py',
]

model = dict(
    backbone=_base_.focalnet,
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=64),
    rpn_head=dict(
        in_channels=64,
        feat_channels=64,
        anchor_generator=dict(scales=[4])),
    # Objects are 32 to 64 pixels: from 16 on, the next level of the pyramid at each doubling.
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64, finest_scale=16),
        bbox_head=dict(in_channels=64, fc_out_channels=256, num_classes=4),
        mask_roi_extractor=dict(out_channels=64, finest_scale=16),
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64, num_classes=4)),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=500, max_per_img=200),
        rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=200)))
