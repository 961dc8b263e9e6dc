# DINO with five scales, FocalNet-L (four focal levels), on Objects365: to be fine-tuned on COCO.
# It is the first part of the way to dino_focalnet_l_5scale_12e_test1200's 63.5 box AP
# (docs/datasets.md, "Objects365"). No published number, and the authors' recipe for it is not
# published: 26 epochs are those of DINO itself (Zhang et al., arXiv 2203.03605) as we remember the
# paper, which could not be looked up here; the step at 24 and all else as on COCO are our choice.
_base_ = [
    '_base_/models/dino.py',
    '_base_/datasets/objects365.py',
    '_base_/schedules/dino_12e.py',
]

num_levels = 5
model = dict(
    num_feature_levels=num_levels,
    backbone=dict(
        type='FocalNet',
        embed_dim=192,
        depths=(2, 2, 18, 2),
        focal_levels=(4, 4, 4, 4),
        focal_windows=(3, 3, 3, 3),
        use_conv_embed=True,
        use_postln=True,
        use_layerscale=True,
        normalize_modulator=True,
        use_checkpoint=True,
        drop_path_rate=0.3,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[192, 384, 768, 1536], num_outs=num_levels),
    encoder=dict(layer_cfg=dict(self_attn_cfg=dict(num_levels=num_levels))),
    decoder=dict(layer_cfg=dict(cross_attn_cfg=dict(num_levels=num_levels))),
    bbox_head=dict(num_classes=365))

train_cfg = dict(max_epochs=26)
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=26, milestones=[24], gamma=0.1),
]
