# Mask2Former, semantic, with a small FocalNet on the generated data set, from scratch.
_base_ = [
    '../_base_/demo_focalnet.py',
    '../_base_/models/mask2former_semantic.py',
    '../_base_/demo_mask2former.py',
    '../_base_/datasets/demo_ade20k.py',
    '../_base_/schedules/demo.py',
]

model = dict(
    data_preprocessor=dict(size=(160, 160)),
    backbone=_base_.focalnet,
    decode_head=dict(
        num_classes=7,
        loss_cls=dict(class_weight=[1.0] * 7 + [0.1]),
        train_cfg=_base_.small_matching,
        **_base_.small_head))
optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(max_norm=0.1))
train_cfg = dict(max_epochs=10, val_interval=2)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=10,
         T_max=10, eta_min=0.),
]
