# COCO 2017 for DINO: boxes alone, images without objects too, and no limit on the long side where
# an image is resized before it is cropped.
_base_ = 'coco_detection.py'

unlimited = 100000  # pixels: more than any image has
train_pipeline = _base_.train_pipeline
train_pipeline[3]['transforms'][1][0] = dict(
    type='RandomChoiceResize',
    scales=[(short, unlimited) for short in (400, 500, 600)],
    keep_ratio=True)

train_dataloader = dict(
    dataset=dict(filter_cfg=dict(filter_empty_gt=False), pipeline=train_pipeline))
