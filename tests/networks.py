"""Small networks of transformers, by their configs: nothing is downloaded."""
DIMS, DEPTHS = [8, 16, 24, 32], [1, 1, 1, 1]
SMALL = {
    'convnext': dict(depths=DEPTHS, hidden_sizes=DIMS),
    'swin': dict(embed_dim=8, depths=[2, 1, 1, 1], num_heads=[1, 2, 2, 4], window_size=4),
    'pvt_v2': dict(hidden_sizes=DIMS, depths=DEPTHS, num_attention_heads=[1, 1, 2, 4],
                   mlp_ratios=[2, 2, 2, 2]),
    'dinov2': dict(hidden_size=16, num_hidden_layers=4, num_attention_heads=2, image_size=56,
                   patch_size=14, mlp_ratio=2),
    'resnet': dict(embedding_size=8, hidden_sizes=DIMS, depths=DEPTHS),
}
