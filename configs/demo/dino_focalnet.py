# DINO with a small FocalNet on the generated data set, from scratch: three layers each of encoder
# and decoder, 128 wide, 60 queries.
_base_ = [
    '../_base_/demo_focalnet.py',
    '../_base_/models/dino.py',
    '../_base_/datasets/demo_coco_boxes.py',
    '../_base_/schedules/demo.py',
]

attention = dict(embed_dims=128)
feed_forward = dict(embed_dims=128, feedforward_channels=256)
model = dict(
    num_queries=60,
    backbone=dict(out_indices=(1, 2, 3), **_base_.focalnet),
    neck=dict(in_channels=[64, 128, 256], out_channels=128),
    encoder=dict(num_layers=3, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=feed_forward)),
    decoder=dict(num_layers=3, layer_cfg=dict(
        self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=feed_forward)),
    positional_encoding=dict(num_feats=64),
    bbox_head=dict(num_classes=4, embed_dims=128),
    dn_cfg=dict(group_cfg=dict(num_dn_queries=40)),
    test_cfg=dict(max_per_img=60))
optim_wrapper = dict(optimizer=dict(lr=4e-4, weight_decay=1e-4), clip_grad=dict(max_norm=0.1))
train_cfg = dict(max_epochs=12, val_interval=4)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=12,
         T_max=12, eta_min=0.),
]
