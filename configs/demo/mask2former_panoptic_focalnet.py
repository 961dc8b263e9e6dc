# Mask2Former, panoptic, with a small FocalNet on the generated data set, from scratch.
_base_ = [
    '../_base_/demo_focalnet.py',
    '../_base_/models/mask2former_panoptic.py',
    '../_base_/demo_mask2former.py',
    '../_base_/datasets/demo_panoptic.py',
    '../_base_/schedules/demo.py',
]

model = dict(
    backbone=_base_.focalnet,
    panoptic_head=dict(
        loss_cls=dict(class_weight=[1.0] * 7 + [0.1]),
        num_things_classes=4,
        num_stuff_classes=3,
        **_base_.small_head),
    panoptic_fusion_head=dict(num_things_classes=4, num_stuff_classes=3),
    train_cfg=_base_.small_matching)
optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(max_norm=0.1))
train_cfg = dict(max_epochs=10, val_interval=2)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=10,
         T_max=10, eta_min=0.),
]
