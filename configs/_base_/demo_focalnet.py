# A FocalNet small enough for the generated data set: four maps of 32 to 256 channels.
focalnet = dict(
    type='FocalNet',
    embed_dim=32,
    depths=(1, 1, 2, 1),
    focal_levels=(3, 3, 3, 3),
    focal_windows=(9, 9, 9, 9),
    use_conv_embed=True,
    drop_path_rate=0.)
