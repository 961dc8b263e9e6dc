# The generated data set, boxes alone.
_base_ = 'demo_coco.py'

train_pipeline = _base_.train_pipeline
train_pipeline[1] = dict(type='LoadAnnotations', with_bbox=True)
test_pipeline = _base_.test_pipeline
test_pipeline[2] = dict(type='LoadAnnotations', with_bbox=True)

train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
