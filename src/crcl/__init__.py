"""Image-caption pairs that are partly wrong: audit them, train a matcher that stays accurate, evaluate it.

    import crcl

    audit = crcl.audit("pairs.csv", images="photos", model="openai/clip-vit-base-patch32")
    audit.rate, audit.precision, audit.recall
    audit.report("report")
    audit.clean("cleaned.csv")

Everything here is loaded when it is used first: `import crcl` itself is quick. What is not listed in `__all__` is
internal and may move.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from crcl import losses
    from crcl.api.auditing import audit, clean
    from crcl.api.reading import extract_features, extract_text_features, info, inject_noise, read
    from crcl.api.reviewing import export_verdicts, import_verdicts
    from crcl.api.scoring import evaluate, load, plot
    from crcl.api.searching import index, index_to, search
    from crcl.api.serving import serve
    from crcl.api.studies import demo, reproduce
    from crcl.api.training import export, import_checkpoint, train
    from crcl.auditing.result import Audit
    from crcl.data.pairs import Pairs
    from crcl.errors import InputError, TrainingError
    from crcl.ledger import Ledger
    from crcl.metrics import Retrieval
    from crcl.progress import Progress
    from crcl.retrieval.engines.remote import RemoteIndex
    from crcl.retrieval.index.folder import Index
    from crcl.retrieval.index.hits import Hit, Hits
    from crcl.retrieval.model import Model
    from crcl.runs.folder import Run

_HOMES = {
    "Audit": "auditing.result",
    "Hit": "retrieval.index.hits",
    "Hits": "retrieval.index.hits",
    "Index": "retrieval.index.folder",
    "InputError": "errors",
    "Ledger": "ledger",
    "Model": "retrieval.model",
    "Pairs": "data.pairs",
    "Progress": "progress",
    "RemoteIndex": "retrieval.engines.remote",
    "Retrieval": "metrics",
    "Run": "runs.folder",
    "TrainingError": "errors",
    "audit": "api.auditing",
    "clean": "api.auditing",
    "demo": "api.studies",
    "evaluate": "api.scoring",
    "export": "api.training",
    "export_verdicts": "api.reviewing",
    "extract_features": "api.reading",
    "extract_text_features": "api.reading",
    "import_checkpoint": "api.training",
    "import_verdicts": "api.reviewing",
    "index": "api.searching",
    "index_to": "api.searching",
    "info": "api.reading",
    "inject_noise": "api.reading",
    "load": "api.scoring",
    "losses": "losses",
    "plot": "api.scoring",
    "read": "api.reading",
    "reproduce": "api.studies",
    "search": "api.searching",
    "serve": "api.serving",
    "train": "api.training",
}
"""The module of each public name."""

__all__ = [
    "Audit",
    "Hit",
    "Hits",
    "Index",
    "InputError",
    "Ledger",
    "Model",
    "Pairs",
    "Progress",
    "RemoteIndex",
    "Retrieval",
    "Run",
    "TrainingError",
    "audit",
    "clean",
    "demo",
    "evaluate",
    "export",
    "export_verdicts",
    "extract_features",
    "extract_text_features",
    "import_checkpoint",
    "import_verdicts",
    "index",
    "index_to",
    "info",
    "inject_noise",
    "load",
    "losses",
    "plot",
    "read",
    "reproduce",
    "search",
    "serve",
    "train",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is used first."""
    if name not in _HOMES:
        raise AttributeError(f"module 'crcl' has no attribute '{name}'")
    module = import_module(f"crcl.{_HOMES[name]}")
    found = module if name == _HOMES[name] else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, for completion."""
    return [*__all__, "__version__"]
