# For a model that one GPU cannot train: several share its parameters, gradients and optimizer state
# out among them (docs/distributed.md). An experiment takes this file as one more of its _base_.
runner_type = 'FSDPRunner'
strategy = dict(
    type='PlainFSDPStrategy',
    # Classes gathered one at a time: blocks of the backbones, layers of DETR's and DINO's
    # transformers. All else, small next to them, is gathered for the whole of a step.
    blocks=r'(Block|(En|De)coderLayer)$')
