"""Verdicts as they stand, kept up to date while reviewers add to them: only what is new is read."""

from crcl.runs.verdicts import Verdict, Verdicts

_Event = tuple[str, int, int, str, Verdict]  # time, step, order, reviewer


class Following:
    """The newest verdicts of a run, and where reviewers differ. Not safe for several threads at once.

    Attributes:
        current: The newest verdict on each row that is not undone, over all reviewers.
        differing: Rows on which the newest verdicts of reviewers differ, with the verdict of each reviewer.
    """

    def __init__(self, verdicts: Verdicts) -> None:
        self.verdicts = verdicts
        self._start("")

    def _start(self, store: str) -> None:
        self.current: dict[int, Verdict] = {}
        self.differing: dict[int, dict[str, Verdict]] = {}
        self._store, self._newest, self._count = store, 0, 0
        self._events: dict[int, list[_Event]] = {}
        self._rows: dict[int, list[int]] = {}
        self._undone: set[int] = set()

    def update(self) -> set[int]:
        """Read what was added meanwhile; returns the rows whose verdicts may have changed."""
        added = self.verdicts.added(self._newest)
        changed: set[int] = set()
        if added.store != self._store or added.newest < self._newest:  # another file took its place
            changed = set(self.current)
            self._start(added.store)
            added = self.verdicts.added(0)
        for step, reviewer, at, verdict in added.said:
            self._count += 1
            self._events.setdefault(verdict.row, []).append((at, step, self._count, reviewer, verdict))
            self._rows.setdefault(step, []).append(verdict.row)
            changed.add(verdict.row)
        for step in added.undone:
            self._undone.add(step)
            changed.update(self._rows.get(step, ()))
        self._newest = added.newest
        for row in changed:
            self._settle(row)
        return changed

    def _settle(self, row: int) -> None:
        """Find the newest verdicts on one row."""
        self.current.pop(row, None)
        self.differing.pop(row, None)
        valid = sorted(
            (event for event in self._events.get(row, ()) if event[1] not in self._undone), key=lambda event: event[:3]
        )
        if not valid:
            return
        self.current[row] = valid[-1][4]
        by_reviewer = {reviewer: verdict for _, _, _, reviewer, verdict in valid}
        if not all(verdict.same(self.current[row]) for verdict in by_reviewer.values()):
            self.differing[row] = by_reviewer
