# 50 epochs of COCO for Mask2Former, counted in iterations of 16 images: its published recipe.
_base_ = 'mask2former_160k.py'

max_iters = 368750
train_cfg = dict(max_iters=max_iters)
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=False, begin=0, end=max_iters, milestones=[327778, 355092],
         gamma=0.1),
]
