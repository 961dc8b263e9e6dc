# DINO with four scales, as the authors trained it with FocalNet. An experiment adds the backbone
# and the neck's in_channels. ReleasedDINO is mmdet's DINO with the reference point head that
# published weights have, ReleasedDINOHead its head with the decoder's prediction layers shared
# (downstream/heads/dino.py).
num_levels = 4
attention = dict(embed_dims=256, num_heads=8, dropout=0.)
deformable_attention = dict(embed_dims=256, num_levels=num_levels, dropout=0.)
feed_forward = dict(embed_dims=256, feedforward_channels=2048, ffn_drop=0.)
model = dict(
    type='ReleasedDINO',
    num_queries=900,
    with_box_refine=True,
    as_two_stage=True,
    num_feature_levels=num_levels,
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=1),
    neck=dict(
        type='ChannelMapper',
        kernel_size=1,
        out_channels=256,
        bias=True,  # as released; mmdet's own DINO has none beside a norm
        act_cfg=None,
        norm_cfg=dict(type='GN', num_groups=32),
        num_outs=num_levels),
    encoder=dict(
        num_layers=6, layer_cfg=dict(self_attn_cfg=deformable_attention, ffn_cfg=feed_forward)),
    decoder=dict(
        num_layers=6,
        return_intermediate=True,
        layer_cfg=dict(
            self_attn_cfg=attention, cross_attn_cfg=deformable_attention, ffn_cfg=feed_forward),
        post_norm_cfg=None),
    positional_encoding=dict(num_feats=128, normalize=True, offset=0., temperature=20),
    bbox_head=dict(
        type='ReleasedDINOHead',
        num_classes=80,
        sync_cls_avg_factor=True,
        loss_cls=dict(
            type='FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=1.0),
        loss_bbox=dict(type='L1Loss', loss_weight=5.0),
        loss_iou=dict(type='GIoULoss', loss_weight=2.0)),
    dn_cfg=dict(
        label_noise_scale=0.5,
        # As both FocalNet-DINO configs have it. (DINO's own scripts for other backbones pass 1.0.)
        box_noise_scale=0.4,
        group_cfg=dict(dynamic=True, num_groups=None, num_dn_queries=100)),
    train_cfg=dict(
        assigner=dict(
            type='HungarianAssigner',
            match_costs=[
                dict(type='FocalLossCost', weight=2.0),
                dict(type='BBoxL1Cost', weight=5.0, box_format='xywh'),
                dict(type='IoUCost', iou_mode='giou', weight=2.0),
            ])),
    test_cfg=dict(max_per_img=300))
