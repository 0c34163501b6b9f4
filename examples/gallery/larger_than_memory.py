"""
A log larger than memory
========================

The log of this example is written in parts and never loaded: ``memory="stream"`` opens it, and ``vf.evaluate`` reads
one shard after the other, in three passes, whatever its size. Estimate and interval are those of the whole log. Here
it is small enough for this page to build quickly; nothing below would change with a thousand times as many files.

The log is simulated: a number that wanders back to 0, and is the reward.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import valuefit as vf

STEPS, EPISODES_PER_FILE, DISCOUNT = 50, 400, 0.9
STARTS = 0.5, 1.5  # between which the first number is drawn
TRUTH = np.mean(STARTS) / (1 - DISCOUNT * 0.9)

# %%
# Twelve files of 20,000 steps each. Files can come from anywhere (Spark, Ray, a database), as long as the steps of an
# episode follow each other.
rng = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
for number in range(12):
    x = np.empty((EPISODES_PER_FILE, STEPS + 1))
    x[:, 0] = rng.uniform(*STARTS, EPISODES_PER_FILE)
    for step in range(STEPS):
        x[:, step + 1] = 0.9 * x[:, step] + 0.4 * rng.standard_normal(EPISODES_PER_FILE)
    log = vf.Transitions.from_arrays(
        x[:, :-1].reshape(-1, 1),
        x[:, :-1].ravel(),
        next_observation=x[:, 1:].reshape(-1, 1),
        truncated=np.tile(np.arange(STEPS) == STEPS - 1, EPISODES_PER_FILE),
        episode=np.repeat(np.arange(EPISODES_PER_FILE) + number * EPISODES_PER_FILE, STEPS),
    )
    vf.save(log, folder / f"part-{number}.parquet")

# %%
# At most about 8 MB are held in memory at a time.
sharded = vf.load(folder, memory="stream", limit=8_000_000)
evaluation = vf.evaluate(sharded, features="polynomial:degree=1", discount=DISCOUNT)
print(f"{sharded.steps:,} steps in {len(sharded.shards)} shards")
print(evaluation.policy_value)
print("verdict:", evaluation.verdict.level)
print(evaluation.notes[0])

# %%
# The same with the first one, two, four and eight files: with more data the interval becomes shorter, and the memory
# that is needed does not grow.
counts, values = (1, 2, 4, 8, 12), []
for count in counts:
    files = [folder / f"part-{number}.parquet" for number in range(count)]
    part = vf.load(files, memory="stream", limit=8_000_000)
    values.append(vf.evaluate(part, features="polynomial:degree=1", discount=DISCOUNT).policy_value)

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
steps = np.array(counts) * EPISODES_PER_FILE * STEPS
estimates = np.array([value.estimate for value in values])
low, high = np.array([value.interval for value in values]).T
axes.errorbar(
    steps, estimates, [estimates - low, high - estimates], fmt="o", color="#0072B2", capsize=3, label="estimate"
)
axes.axhline(TRUTH, color="#D55E00", linewidth=1, label="true value")
axes.set(xscale="log", xlabel="steps", ylabel="policy value", title="Read in parts")
axes.set_xticks(steps, [f"{count:,}" for count in steps])
axes.minorticks_off()
axes.legend()
plt.show()
