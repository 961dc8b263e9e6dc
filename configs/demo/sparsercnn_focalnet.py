# Sparse R-CNN with a small FocalNet on the generated data set, from scratch: three stages, 40
# proposals.
_base_ = [
    '../_base_/demo_focalnet.py',
    '../_base_/models/sparsercnn.py',
    '../_base_/datasets/demo_coco_boxes.py',
    '../_base_/schedules/demo.py',
]

stage = {
    **_base_.stage,
    'num_classes': 4,
    'in_channels': 64,
    'feedforward_channels': 256,
    'dynamic_conv_cfg': {
        **_base_.stage.dynamic_conv_cfg, 'in_channels': 64, 'feat_channels': 32, 'out_channels': 64
    },
}
model = dict(
    backbone=_base_.focalnet,
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=64),
    rpn_head=dict(num_proposals=40, proposal_feature_channel=64),
    roi_head=dict(
        num_stages=3,
        stage_loss_weights=[1, 1, 1],
        proposal_feature_channel=64,
        bbox_roi_extractor=dict(out_channels=64, finest_scale=16),
        bbox_head=[stage] * 3),
    train_cfg=dict(rcnn=[_base_.matching] * 3),
    test_cfg=dict(rcnn=dict(max_per_img=40)))
optim_wrapper = dict(optimizer=dict(lr=5e-4, weight_decay=1e-4), clip_grad=dict(max_norm=1.))
train_cfg = dict(max_epochs=12, val_interval=4)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=12,
         T_max=12, eta_min=0.),
]
