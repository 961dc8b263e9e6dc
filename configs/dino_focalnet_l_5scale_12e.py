# DINO with five scales, FocalNet-L (four focal levels), 12 epochs.
# No published number of this schedule alone: the authors pre-train on Objects365 first. From their
# focalnet_large_fl4_pretrained_on_o365 on, with --cfg-options load_from=FILE, it is the part of the
# way to 63.5 box AP that is published; dino_focalnet_l_5scale_12e_test1200.py says more.
# (Focal Modulation Networks, arXiv 2203.11926: released config.)
_base_ = 'dino_focalnet_l_4scale_12e.py'

num_levels = 5
model = dict(
    num_feature_levels=num_levels,
    backbone=dict(
        focal_levels=(4, 4, 4, 4),
        focal_windows=(3, 3, 3, 3),
        normalize_modulator=True,
        out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[192, 384, 768, 1536], num_outs=num_levels),
    encoder=dict(layer_cfg=dict(self_attn_cfg=dict(num_levels=num_levels))),
    decoder=dict(layer_cfg=dict(cross_attn_cfg=dict(num_levels=num_levels))))
