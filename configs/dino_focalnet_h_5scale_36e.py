# DINO with five scales, FocalNet-H (four focal levels), 36 epochs.
# Published: 64.3 box AP (minival), 64.4 (test-dev), after pre-training on Objects365.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = 'dino_focalnet_l_5scale_36e.py'

model = dict(
    backbone=dict(
        embed_dim=352,
        use_postln_in_modulation=True,
        normalize_modulator=False),
    neck=dict(in_channels=[352, 704, 1408, 2816]))
