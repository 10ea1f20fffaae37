"""Load on the page of `crcl serve`: many reviewers at once who judge, search and look, and how long they wait.

    python benchmarks/serve.py FOLDER [--clients 50] [--seconds 60] [--pause 1]

FOLDER gets drawn scenes, their audit by the linear model, and verdicts. The server is a process of its own; the clients
are tasks of this one, each with a connection of its own, on the same machine: only the loopback interface is used. A
client does as the page does: asks for the next pair, takes it and its picture, waits for `--pause` seconds on average,
gives its verdict and asks for the progress; every fifth time it searches, every tenth it opens the grid and takes a
step back. `--pause 0` asks as fast as answers come.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import httpx
import numpy as np

import crcl
from crcl.data import scenes
from crcl.data.noise import mismatch
from crcl.features.grid import grid_features
from crcl.runs.verdicts import Verdicts

IMAGES = 1000
SENTENCES = ("a red star", "a green ring and an orange box", "two things, one of them a blue heart")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between looking and judging, on average")
    parser.add_argument("--images", type=int, default=IMAGES)
    options = parser.parse_args()
    run = prepare(options.folder, options.images)
    server, url = start(run)
    try:
        took, errors, seconds = asyncio.run(load(url, options.clients, options.seconds, options.pause))
        cpu = processor_seconds(server.pid)
    finally:
        server.terminate()
        server.wait(30)
    stored = len(Verdicts.open(run).history())
    print(f"{options.clients} clients for {seconds:.0f} s, pause {options.pause:g} s; load of the machine before and "
          f"during: {os.getloadavg()[2]:.1f}, {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip
    print(table(took, seconds))
    print(f"\n{errors} errors; {stored:,} verdicts stored, {len(took['verdict']):,} answered; "
          f"the server took {cpu:.0f} s of the processor")  # fmt: skip
    if errors or stored < len(took["verdict"]):
        sys.exit(1)


def prepare(folder: Path, images: int) -> Path:
    """A run on drawn scenes, a fifth of whose captions are mismatched, without verdicts."""
    run = folder / "audit" / "run"
    if not run.is_dir():
        drawn = folder / "drawn"
        scenes.write(drawn, describe=grid_features, train=images, dev=1, test=1, seed=0)
        names = (drawn / "train_ids.txt").read_text("utf-8").splitlines()
        captions = (drawn / "train_caps.txt").read_text("utf-8").splitlines()
        image_of = np.repeat(np.arange(images), len(captions) // images)
        shown = mismatch(image_of, 0.2, 0, level="caption", images=images)
        rows = "".join(f'{names[image]},"{caption}"\n' for image, caption in zip(shown, captions, strict=True))
        (folder / "pairs.csv").write_text(f"image,caption\n{rows}", "utf-8")
        settings = {"method": "relink", "matcher.name": "linear"}
        crcl.audit(folder / "pairs.csv", folder / "audit", images=drawn / "images", settings=settings)
    for path in run.glob("verdicts.sqlite*"):
        path.unlink()
    return run


def start(run: Path) -> tuple["subprocess.Popen[str]", str]:
    """`crcl serve` as a process of its own, and its address."""
    words = [sys.executable, "-m", "crcl", "serve", str(run), "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line.startswith("serving http://127.0.0.1:"):
        raise SystemExit(f"the server did not start: {line}")
    return server, line.split()[1]


async def load(url: str, clients: int, seconds: float, pause: float) -> tuple[dict[str, list[float]], int, float]:
    """Milliseconds of each kind of request, the number of errors, and the seconds that it took."""
    took: dict[str, list[float]] = defaultdict(list)
    errors: list[str] = []
    began = time.monotonic()

    async def client(number: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as browser:
            await Visitor(browser, number, took, errors).review(began + seconds, pause)

    await asyncio.gather(*(client(number) for number in range(clients)))
    for error in sorted(set(errors))[:5]:
        print(f"error: {error}", file=sys.stderr)
    return took, len(errors), time.monotonic() - began


class Visitor:
    """One reviewer in front of one browser."""

    def __init__(
        self, browser: httpx.AsyncClient, number: int, took: dict[str, list[float]], errors: list[str]
    ) -> None:
        self.browser, self.name, self.took, self.errors = browser, f"reviewer {number}", took, errors
        self.rng = np.random.default_rng(number)

    async def ask(self, kind: str, path: str, body: object = None, **query: object) -> httpx.Response | None:
        """One request with its time; None where it failed."""
        began = time.perf_counter()
        try:
            if body is None:
                answer = await self.browser.get(path, params=query)  # type: ignore[arg-type]
            else:
                answer = await self.browser.post(path, json=body)
        except httpx.HTTPError as error:
            self.errors.append(f"{kind}: {type(error).__name__}")
            return None
        self.took[kind].append(1000 * (time.perf_counter() - began))
        if answer.status_code != 200:
            self.errors.append(f"{kind}: {answer.status_code} {answer.text[:100]}")
            return None
        return answer

    async def review(self, until: float, pause: float) -> None:
        """Judge pairs of the worst first until it is time."""
        turn = 0
        await asyncio.sleep(pause * self.rng.random())
        while time.monotonic() < until:
            turn += 1
            after = int(self.rng.integers(0, 500))
            found = await self.ask("next", "/api/queues/worst/next", after=after)
            place = 0 if found is None else found.json()["place"] or 0
            pair = await self.ask("pair", f"/api/queues/worst/{place}")
            if pair is None:
                continue
            await self.ask("picture", f"/images/{pair.json()['image']}", size="large")
            await asyncio.sleep(pause * 2 * self.rng.random())
            said = {"row": pair.json()["row"], "verdict": str(self.rng.choice(["right", "wrong", "unsure"]))}
            step = {"reviewer": self.name, "queue": "worst", "verdicts": [said]}
            await self.ask("verdict", "/api/verdicts", step)
            await self.ask("progress", "/api/progress")
            if turn % 5 == 0:
                await self.ask("search", "/api/search", q=str(self.rng.choice(SENTENCES)))
            if turn % 10 == 0:
                await self.ask("grid", "/api/pairs", count=60)
                await self.ask("undo", "/api/undo", {"reviewer": self.name})


def table(took: dict[str, list[float]], seconds: float) -> str:
    """Requests per second, p50 and p99 of each kind and of all, as Markdown."""
    lines = ["| request | number | per second | p50, ms | p99, ms | longest, ms |", "|---|---|---|---|---|---|"]
    everything = [ms for each in took.values() for ms in each]
    for kind, each in [*took.items(), ("all", everything)]:
        p50, p99, longest = np.quantile(each, [0.5, 0.99, 1.0])
        lines.append(f"| {kind} | {len(each):,} | {len(each) / seconds:.1f} | {p50:.0f} | {p99:.0f} | {longest:.0f} |")
    return "\n".join(lines)


def processor_seconds(pid: int) -> float:
    """Seconds of the processor that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
