# Small versions of every family, for the generated data set (tools/transfer.py demo:all): four maps
# of strides 4 to 32 and their channels. `pyramid` turns the maps of one resolution into those.
_base_ = 'demo_focalnet.py'

families = dict(
    focalnet=dict(
        backbone=_base_.focalnet,
        channels=[32, 64, 128, 256]),
    container=dict(
        backbone=dict(
            type='Container',
            embed_dims=(32, 64, 128, 256),
            depths=(1, 1, 2, 1),
            num_heads=8,
            mlp_ratios=(4, 4, 4, 4)),
        channels=[32, 64, 128, 256]),
    localvit_pvt=dict(
        backbone=dict(
            type='LocalViTPVT',
            img_size=160,
            embed_dims=(32, 64, 128, 256),
            depths=(1, 1, 2, 1),
            num_heads=(1, 2, 4, 8),
            mlp_ratios=(4, 4, 4, 4)),
        channels=[32, 64, 128, 256]),
    localvit_swin=dict(
        backbone=dict(
            type='LocalViTSwin',
            embed_dim=32,
            depths=(1, 1, 2, 1),
            num_heads=(1, 2, 4, 8),
            window_size=5),
        channels=[32, 64, 128, 256]),
    localvit=dict(
        backbone=dict(
            type='LocalViT',
            img_size=160,
            embed_dim=96,
            depth=4,
            reduction=96,
            out_indices=(0, 1, 2, 3)),
        channels=[96, 96, 96, 96],
        pyramid=dict(type='mmseg.Feature2Pyramid', embed_dim=96)),
    localvit_tnt=dict(
        backbone=dict(
            type='LocalViTTNT',
            img_size=160,
            embed_dim=96,
            depth=4,
            reduction=96,
            out_indices=(0, 1, 2, 3)),
        channels=[96, 96, 96, 96],
        pyramid=dict(type='mmseg.Feature2Pyramid', embed_dim=96)),
    localvit_t2t=dict(
        backbone=dict(
            type='LocalViTT2T',
            img_size=160,
            embed_dim=96,
            depth=4,
            out_indices=(0, 1, 2, 3)),
        channels=[96, 96, 96, 96],
        pyramid=dict(type='mmseg.Feature2Pyramid', embed_dim=96)))
