# Can DETR, from random weights, memorise a few generated images? (It needs far more data and time
# than the other detectors to generalise.) tools/transfer.py makes the images and runs it.
_base_ = [
    '../_base_/demo_focalnet.py',
    '../_base_/models/detr.py',
    '../_base_/datasets/demo_coco.py',
    '../_base_/schedules/demo.py',
]

attention = dict(embed_dims=128, num_heads=4, dropout=0., batch_first=True)
feed_forward = dict(embed_dims=128, feedforward_channels=256, ffn_drop=0.)
layers = dict(num_layers=3, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=feed_forward))
model = dict(
    num_queries=20,
    backbone=dict(out_indices=(2, ), **_base_.focalnet),  # stride 16: the images are small
    neck=dict(in_channels=[128], out_channels=128),
    encoder=layers,
    decoder=dict(num_layers=3, layer_cfg=dict(
        self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=feed_forward)),
    positional_encoding=dict(num_feats=64),
    bbox_head=dict(num_classes=4, embed_dims=128),
    test_cfg=dict(max_per_img=20))

# The images of one epoch are the few; each is seen once in it.
train_cfg = dict(max_epochs=400, val_interval=100)
optim_wrapper = dict(optimizer=dict(lr=3e-4, weight_decay=0.), clip_grad=dict(max_norm=0.1))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=400, milestones=[300], gamma=0.1),
]
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=100))
