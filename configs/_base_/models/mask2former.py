# Mask2Former's head (Cheng et al., arXiv 2112.01527), as published: the part that semantic and
# panoptic segmentation share. mask2former_semantic.py and mask2former_panoptic.py stand on it.
feed_forward = dict(ffn_drop=0., num_fcs=2, act_cfg=dict(type='ReLU', inplace=True))
attention = dict(embed_dims=256, num_heads=8, dropout=0., batch_first=True)
head = dict(
    type='Mask2FormerHead',
    strides=[4, 8, 16, 32],
    feat_channels=256,
    out_channels=256,
    num_queries=100,
    num_transformer_feat_level=3,
    pixel_decoder=dict(
        type='mmdet.MSDeformAttnPixelDecoder',
        num_outs=3,
        norm_cfg=dict(type='GN', num_groups=32),
        act_cfg=dict(type='ReLU'),
        encoder=dict(
            num_layers=6,
            layer_cfg=dict(
                self_attn_cfg=dict(num_levels=3, num_points=4, **attention),
                ffn_cfg=dict(embed_dims=256, feedforward_channels=1024, **feed_forward))),
        positional_encoding=dict(num_feats=128, normalize=True)),
    enforce_decoder_input_project=False,
    positional_encoding=dict(num_feats=128, normalize=True),
    transformer_decoder=dict(
        return_intermediate=True,
        num_layers=9,
        layer_cfg=dict(
            self_attn_cfg=attention,
            cross_attn_cfg=attention,
            ffn_cfg=dict(embed_dims=256, feedforward_channels=2048, **feed_forward)),
        init_cfg=None),
    loss_mask=dict(
        type='mmdet.CrossEntropyLoss', use_sigmoid=True, reduction='mean', loss_weight=5.0),
    loss_dice=dict(
        type='mmdet.DiceLoss',
        use_sigmoid=True,
        activate=True,
        reduction='mean',
        naive_dice=True,
        eps=1.0,
        loss_weight=5.0))
# Beside the classes, one output for "no object", with a tenth of their weight.
loss_cls = dict(
    type='mmdet.CrossEntropyLoss', use_sigmoid=False, loss_weight=2.0, reduction='mean')
no_object = 0.1
# Masks are compared at some points: three quarters of them where predictions are least sure (of
# three times as many), the others anywhere.
matching = dict(
    num_points=12544,
    oversample_ratio=3.0,
    importance_sample_ratio=0.75,
    assigner=dict(
        type='mmdet.FullPrecisionAssigner',
        match_costs=[
            dict(type='mmdet.ClassificationCost', weight=2.0),
            dict(type='mmdet.CrossEntropyLossCost', weight=5.0, use_sigmoid=True),
            dict(type='mmdet.DiceCost', weight=5.0, pred_act=True, eps=1.0),
        ]),
    sampler=dict(type='mmdet.MaskPseudoSampler'))
