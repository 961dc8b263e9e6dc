# 100 epochs of COCO for Mask2Former, counted in iterations of 16 images: its published recipe for
# Swin-L, which goes with 200 queries.
_base_ = 'mask2former_160k.py'

max_iters = 737500
train_cfg = dict(max_iters=max_iters)
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=False, begin=0, end=max_iters, milestones=[655556, 710184],
         gamma=0.1),
]
