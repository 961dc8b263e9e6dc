# COCO 2017, boxes alone, with the plain augmentation of mmdet's baselines: one scale, flips.
_base_ = 'coco_detection.py'

train_pipeline = [
    *_base_.train_pipeline[:2],
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    _base_.train_pipeline[-1],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
