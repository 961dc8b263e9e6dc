"""Numbers: metrics, predictions, costs, proofs that things run and learn, the ledger of results."""
from . import panoptic, records  # noqa: F401
