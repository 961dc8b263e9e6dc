# What makes Mask2Former's head small enough for the generated data set: 64 wide, two layers of
# pixel decoder, three of decoder, 30 queries.
small_head = dict(
    in_channels=[32, 64, 128, 256],
    feat_channels=64,
    out_channels=64,
    num_queries=30,
    pixel_decoder=dict(
        encoder=dict(
            num_layers=2,
            layer_cfg=dict(
                self_attn_cfg=dict(embed_dims=64),
                ffn_cfg=dict(embed_dims=64, feedforward_channels=256))),
        positional_encoding=dict(num_feats=32)),
    positional_encoding=dict(num_feats=32),
    transformer_decoder=dict(
        num_layers=3,
        layer_cfg=dict(
            self_attn_cfg=dict(embed_dims=64),
            cross_attn_cfg=dict(embed_dims=64),
            ffn_cfg=dict(embed_dims=64, feedforward_channels=256))))
small_matching = dict(num_points=2048)
