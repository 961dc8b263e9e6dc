# dino_focalnet_l_5scale_12e, trained and tested at high resolution, by the release's transforms for
# it. (Of their sides, 480 to 800 go in steps of 80; that the others go in steps of 100 is our
# reading.) No published number: whether the 63.5 of dino_focalnet_l_5scale_12e_test1200.py was
# trained so is not said.
_base_ = 'dino_focalnet_l_5scale_12e_test1200.py'

scales = [(short, 2000) for short in (480, 560, 640, 720, 800, 900, 1000, 1100, 1200)]
resize = dict(type='RandomChoiceResize', scales=scales, keep_ratio=True)
train_pipeline = _base_.train_pipeline
train_pipeline[3] = dict(
    type='RandomChoice',
    transforms=[
        [resize],
        [
            dict(
                type='RandomChoiceResize',
                scales=[(short, _base_.unlimited) for short in range(400, 901, 100)],
                keep_ratio=True),
            dict(
                type='RandomCrop',
                crop_type='absolute_range',
                crop_size=(384, 900),
                allow_negative_crop=True),
            resize,
        ],
    ])
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
