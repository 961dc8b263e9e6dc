# COCO 2017, boxes alone, with flips, a short side of 640 to 800 pixels and no crop: as PVT trains
# DETR.
_base_ = 'coco_detection.py'

train_pipeline = [
    *_base_.train_pipeline[:3],
    dict(
        type='RandomChoiceResize',
        scales=[(short, 1333) for short in range(640, 801, 32)],
        keep_ratio=True),
    _base_.train_pipeline[-1],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
