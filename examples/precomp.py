"""A folder in the field's layout: mismatch its training pairs, train, evaluate and audit.

    python examples/precomp.py FOLDER RUN [key=value ...]

FOLDER holds `{train,dev,test}_ims.npy`, `_caps.txt` and optionally `_ids.txt`. Without arguments a small folder of
drawn scenes is made in the current one. Settings are those of `crcl train --set`.
"""

import sys
from pathlib import Path

import crcl
from crcl.data import scenes
from crcl.features.grid import grid_features

folder, run_folder, settings = Path("scenes"), Path("run"), ["train.pieces=[3,3,6]", "ledger.freeze_epochs=2"]
if len(sys.argv) == 2:
    sys.exit(__doc__)
if len(sys.argv) > 2:
    folder, run_folder, settings = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
elif not folder.exists():
    scenes.write(folder, describe=grid_features, train=200, dev=40, test=40)

run = crcl.train(folder, run_folder, preset="demo", noise=0.4, settings=settings, resume=True)
scores = crcl.evaluate(run, split="test")
print(f"test rSum {scores.rsum:.1f}: text R@1 {scores.i2t.r1:.1f}, image R@1 {scores.t2i.r1:.1f}")

audit = crcl.audit(run)
print(f"{audit.suspect_count} of {audit.table.num_rows} training pairs are suspect; the worst three:")
for pair in audit.table.slice(0, 3).to_pylist():
    print(f"  {pair['correspondence']:.3f}  {pair['image']}  {pair['caption']}")
if audit.detection is not None:
    print(f"the injected mismatches are found with AUROC {audit.detection.auroc:.3f}")
