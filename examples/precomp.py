"""The field's layout, from Python: mismatch, train, evaluate and audit a precomp folder.

    python examples/precomp.py FOLDER RUN [key=value ...]

FOLDER holds `{train,dev,test}_ims.npy`, `_caps.txt` and optionally `_ids.txt`. Without arguments a small folder of
drawn scenes is made in the current one. Settings are those of `crcl train --set`.
"""

import sys
from pathlib import Path

from crcl import config
from crcl.auditing.findings import find
from crcl.data import scenes
from crcl.features.grid import grid_features
from crcl.retrieval.evaluation import evaluate
from crcl.retrieval.opening import open_scorer
from crcl.training import inputs, session

folder, run_folder, settings = Path("scenes"), Path("run"), ["train.pieces=[3,3,6]", "ledger.freeze_epochs=2"]
if len(sys.argv) == 2:
    sys.exit(__doc__)
if len(sys.argv) > 2:
    folder, run_folder, settings = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
elif not folder.exists():
    scenes.write(folder, describe=grid_features, train=200, dev=40, test=40)

chosen = config.load(preset="demo", base={"data.path": str(folder), "noise.rate": 0.4}, settings=settings)
run = session.train(chosen, run_folder, resume=True)

_, _, scorer = open_scorer(run.path)
scores = evaluate([scorer], inputs.open_pairs(chosen).split("test"))
print(f"test rSum {scores.rsum:.1f}: text R@1 {scores.i2t.r1:.1f}, image R@1 {scores.t2i.r1:.1f}")

pairs = inputs.audited_pairs(run, chosen)
found = find(pairs, run.load_ledger(), scorer.pair_similarities(pairs))
print(f"{len(found.suspects)} of {len(pairs)} training pairs are suspect; the worst three:")
for row in found.rows[:3]:
    print(f"  {found.correspondence[row]:.3f}  {pairs.image_ids[pairs.image_index[row]]}  {pairs.captions[row]}")
if (detected := found.detection()) is not None:
    print(f"the injected mismatches are found with AUROC {detected.auroc:.3f}")
