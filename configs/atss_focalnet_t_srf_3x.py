# ATSS, FocalNet-T (two focal levels, srf), 3x.
# No published number; the lrf model's is in atss_focalnet_t_3x.py.
_base_ = 'atss_focalnet_t_3x.py'

model = dict(backbone=dict(focal_levels=(2, 2, 2, 2)))
