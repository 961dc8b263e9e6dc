# Cascade Mask R-CNN with a small FocalNet on the generated data set, from scratch.
_base_ = [
    '../_base_/demo_focalnet.py',
    '../_base_/models/cascade_maskrcnn.py',
    '../_base_/datasets/demo_coco.py',
    '../_base_/schedules/demo.py',
]

small = dict(in_channels=64, conv_out_channels=64, fc_out_channels=256, num_classes=4)
model = dict(
    backbone=_base_.focalnet,
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=64),
    rpn_head=dict(in_channels=64, feat_channels=64, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64, finest_scale=16),
        bbox_head=[{**head, **small} for head in _base_.model.roi_head.bbox_head],
        mask_roi_extractor=dict(out_channels=64, finest_scale=16),
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64, num_classes=4)),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=500, max_per_img=200),
        rcnn=[{**stage, 'sampler': {**stage.sampler, 'num': 64}}
              for stage in _base_.model.train_cfg.rcnn]),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=200)))
