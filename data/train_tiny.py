"""Make everything in this folder: tokenizer, two tiny models, and their recorded answers.

    python data/train_tiny.py --out data

needs no network. The text comes from the running Python itself (``corpus.py``) and is cut
into windows by ``batches.py``; the models are in ``models.py``, and ``export.py`` writes the
files. Training takes about half an hour, one core for each model. Checkpoints go to ``--work``;
a second call continues from them, and once training is over it only exports again.

The seed, the order of the windows, the schedule and the number of threads are fixed, so the
same Python, the same libraries and the same kind of processor give the same weights;
elsewhere rounding differs and the weights drift apart, which is why the results are kept
next to this script.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from batches import Source, draw_batch, train_tokenizer
from corpus import docstring_documents, fingerprint, topic_documents
from export import export_all
from models import GPT2, GPT2Config, Llama, LlamaConfig, generate
from tokenizers import Tokenizer
from torch import Tensor, nn

SEED = 1729
BATCH_TOKENS = 2048  # small batches: on this little text, more steps beat smoother ones
HELD_OUT_EVERY = 40  # each 40th docstring document is kept for measuring
PROMPTS = ("The class statement", "The for statement", "A list is")


@dataclass(frozen=True)
class Schedule:
    """How one model is trained."""

    steps: int
    peak_rate: float
    window: int  # positions per training window ...
    last_window: int  # ... and in the last quarter of the steps
    warmup: int = 200
    weight_decay: float = 0.02

    def rate(self, step: int) -> float:
        """Learning rate: a linear rise, then half a cosine down to (nearly) nothing."""
        if step < self.warmup:
            return self.peak_rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.peak_rate * (0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2)

    def window_at(self, step: int) -> int:
        """Short windows first: attention is cheaper and positions near 0 matter most."""
        return self.window if step < 0.75 * self.steps else self.last_window


SCHEDULES = {
    "tiny": Schedule(steps=9500, peak_rate=7e-3, window=256, last_window=512),
    "gpt2": Schedule(steps=6000, peak_rate=4e-3, window=256, last_window=256),
}


@dataclass
class Corpus:
    """What the models learn from, encoded."""

    topics: Source
    docstrings: Source
    held_out: Source  # never trained on
    tokenizer: Tokenizer
    fingerprint: str


def prepare_corpus() -> Corpus:
    """Collect the text, train the tokenizer and encode."""
    topics, docstrings = topic_documents(), docstring_documents()
    held_out = docstrings[::HELD_OUT_EVERY]
    docstrings = [text for i, text in enumerate(docstrings) if i % HELD_OUT_EVERY]
    tokenizer = train_tokenizer(topics * 4 + docstrings)  # the topics' words get their tokens
    parts = [Source.encode(tokenizer, texts) for texts in (topics, docstrings, held_out)]
    corpus = Corpus(*parts, tokenizer, fingerprint(topics + docstrings))
    sizes = ", ".join(f"{len(part.ids):,}" for part in parts)
    print(f"corpus {corpus.fingerprint}: {sizes} tokens", flush=True)
    return corpus


# ---------------------------------------------------------------- training


def mean_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats per token."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def make_optimizer(model: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    """AdamW; only the matrices decay, not the norm scales and biases."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)


def train_step(model, optimizer, schedule: Schedule, corpus: Corpus, step: int) -> float:
    """One update of the weights; returns the loss before it."""
    window = schedule.window_at(step)
    sources = (corpus.topics, corpus.docstrings)
    inputs, targets = draw_batch(sources, BATCH_TOKENS // window, window, (SEED, step))
    loss = mean_loss(model, inputs, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = schedule.rate(step)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def held_out_loss(model: nn.Module, source: Source) -> float:
    """Loss on documents that are never trained on, in windows of 256."""
    rows = len(source.ids) // 257
    windows = torch.from_numpy(source.ids[: rows * 257].reshape(rows, 257))
    with torch.no_grad():
        return mean_loss(model, windows[:, :-1], windows[:, 1:]).item()


def train(name: str, model: nn.Module, schedule: Schedule, corpus: Corpus, work: Path) -> None:
    """Train ``model`` to the end of its schedule, continuing from a checkpoint if any."""
    optimizer = make_optimizer(model, schedule)
    settings = {"schedule": dataclasses.asdict(schedule), "corpus": corpus.fingerprint}
    first = 0
    if saved := load_checkpoint(name, work):
        if any(saved[key] != value for key, value in settings.items()):
            raise SystemExit(f"{work} holds a run with other settings; use another --work")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    average, began = 0.0, time.monotonic()
    for step in range(first, schedule.steps):
        loss = train_step(model, optimizer, schedule, corpus, step)
        average = loss if step == first else 0.99 * average + 0.01 * loss
        done = step + 1
        if done % 500 == 0 or done == schedule.steps:
            speed = (done - first) * BATCH_TOKENS / (time.monotonic() - began)
            print(
                f"{name} step {done}/{schedule.steps}  loss {average:.3f}  "
                f"held out {held_out_loss(model, corpus.held_out):.3f}  {speed:,.0f} tokens/s",
                flush=True,
            )
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint(name, work, state | settings | {"step": done})
    show_samples(name, model, corpus.tokenizer)


def save_checkpoint(name: str, work: Path, state: dict) -> None:
    """Write beside the old checkpoint first, so that an interruption loses neither."""
    torch.save(state, work / f"{name}.partial")
    (work / f"{name}.partial").replace(work / f"{name}.pt")


def load_checkpoint(name: str, work: Path) -> dict | None:
    """The last checkpoint of a model, if there is one."""
    path = work / f"{name}.pt"
    return torch.load(path) if path.exists() else None


def show_samples(name: str, model: nn.Module, tokenizer: Tokenizer) -> None:
    """Print what the model says, greedily and at temperature 0.8."""
    for prompt in PROMPTS:
        for temperature in (0.0, 0.8):
            ids = generate(model, tokenizer.encode(prompt).ids, 100, temperature, SEED)
            print(f"---- {name}, temperature {temperature}: {tokenizer.decode(ids)}\n", flush=True)


def fit_to_minutes(model, schedule: Schedule, corpus: Corpus, minutes: float) -> Schedule:
    """A schedule with as many steps as ``minutes`` allow, by timing a few on a copy."""
    trial = type(model)(model.config)
    optimizer = make_optimizer(trial, schedule)
    for step in range(5):
        train_step(trial, optimizer, schedule, corpus, step)
    began = time.monotonic()
    for step in range(40):
        train_step(trial, optimizer, schedule, corpus, step)
    seconds = (time.monotonic() - began) / 40
    return dataclasses.replace(schedule, steps=max(100, int(60 * minutes / seconds)))


# ---------------------------------------------------------------- main


def build(name: str) -> nn.Module:
    """A freshly initialised model, the same one each time."""
    torch.manual_seed(SEED)
    return Llama(LlamaConfig()) if name == "tiny" else GPT2(GPT2Config())


def train_one(name: str, corpus: Corpus, minutes: float | None, work: Path) -> None:
    """Train one model, in a process of its own."""
    # One thread: threads wait for each other at every operation, which on a shared machine
    # costs more than the second core brings. The second core trains the other model.
    torch.set_num_threads(1)
    model, schedule = build(name), SCHEDULES[name]
    if minutes:
        saved = load_checkpoint(name, work)
        fitted = Schedule(**saved["schedule"]) if saved else None
        schedule = fitted or fit_to_minutes(model, schedule, corpus, minutes)
    train(name, model, schedule, corpus, work)


def main() -> None:
    """Parse the options, train what is not trained yet, export."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    default_work = Path(tempfile.gettempdir()) / "train_tiny"
    parser.add_argument("--work", type=Path, default=default_work, help="folder for checkpoints")
    parser.add_argument("--minutes", type=float, help="train about this long, not the full time")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)

    corpus = prepare_corpus()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        runs = [
            pool.submit(train_one, name, corpus, options.minutes, options.work)
            for name in SCHEDULES
        ]
        for run in runs:
            run.result()  # raises what the run raised
    tiny, gpt2 = (build(name).eval() for name in ("tiny", "gpt2"))
    tiny.load_state_dict(load_checkpoint("tiny", options.work)["model"])
    gpt2.load_state_dict(load_checkpoint("gpt2", options.work)["model"])
    export_all(tiny, gpt2, corpus.tokenizer, options.out)


if __name__ == "__main__":
    main()
