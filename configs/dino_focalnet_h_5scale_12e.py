# DINO with five scales, FocalNet-H (four focal levels), 12 epochs.
# No published number of this schedule alone: dino_focalnet_h_5scale_12e_test1200.py has the number
# after pre-training on Objects365.
# (Focal Modulation Networks, arXiv 2203.11926: FocalNet-DINO's recipe, which is for L.)
_base_ = 'dino_focalnet_l_5scale_12e.py'

model = dict(
    backbone=dict(
        embed_dim=352,
        use_postln_in_modulation=True,
        normalize_modulator=False),
    neck=dict(in_channels=[352, 704, 1408, 2816]))
