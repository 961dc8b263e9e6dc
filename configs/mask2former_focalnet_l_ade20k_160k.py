# Mask2Former for semantic segmentation of ADE20K, FocalNet-L (three focal levels), 160k iterations.
# Published: 58.5 mIoU. (Focal Modulation Networks, arXiv 2203.11926, abstract.)
# Its config was not released: this is Mask2Former's own recipe for Swin-L (crops of 640 without a
# limit on any class, 100 queries, mixed precision), and which of the two L is our choice.
_base_ = [
    '_base_/models/mask2former_semantic.py',
    '_base_/datasets/ade20k_640.py',
    '_base_/schedules/mask2former_160k.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='FocalNet',
        embed_dim=192,
        depths=(2, 2, 18, 2),
        focal_levels=(3, 3, 3, 3),
        focal_windows=(5, 5, 5, 5),
        use_conv_embed=True,
        use_postln=True,
        use_layerscale=True,
        use_checkpoint=True,
        drop_path_rate=0.3,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    decode_head=dict(in_channels=[192, 384, 768, 1536]))
