"""The naive twins: every algorithm in plain loops as in the papers, for comparison with the fast code.

Nothing is shared with the package. Full matrices are formed at every step, so problems should have at most about a
hundred steps and ten features. References: Du, Chen, Li, Xiao, Zhou (ICML 2017) for the saddle
point and its Algorithms 1 to 3; Sutton et al. (2009) for GTD2 and TDC; Prashanth, Korda and Munos (2014) for
fLSTD-SA; Korda and Prashanth (2015) for centred TD; Geramifard et al. (2007) for iLSTD.

Conventions. `draws` is a list with one integer array per epoch: the steps sampled in that epoch, in order. A
trajectory is the list of (theta, w) after every single update; a method without w reports zeros for it.
"""

from typing import NamedTuple

import numpy as np

EIGENVALUE_CUT = 1e-13  # eigenvalues of C below this fraction of the largest are treated as zero
SINGULAR_CUT = 1e-12  # the same for singular values of the least-squares matrix


class Log(NamedTuple):
    """A log of n steps over m feature rows: step t goes from row now[t] to row next[t] (-1: terminated)."""

    Phi: np.ndarray  # (m, d) features of the value function
    Psi: np.ndarray  # (m, k) features of the dual; Phi itself in the ordinary case
    now: np.ndarray
    next: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    ratio: np.ndarray
    episode: np.ndarray
    trace: float = 0.0
    ridge: float = 0.0
    identity: bool = False  # True: the metric C is the identity


# The problem --------------------------------------------------------------------------------------


def steps(log):
    """The vectors of each step, in log order: a list of (u, v, psi, reward)."""
    result = []
    for t in range(len(log.now)):
        phi = log.Phi[log.now[t]]
        psi = log.Psi[log.now[t]]
        if log.next[t] == -1:
            v = phi.copy()
        else:
            v = phi - log.discount[t] * log.Phi[log.next[t]]
        first = t == 0 or log.episode[t] != log.episode[t - 1]
        if first or log.next[t - 1] == -1:
            u = log.ratio[t] * psi
        else:
            u = log.ratio[t] * (psi + log.trace * log.discount[t - 1] * result[-1][0])
        result.append((u, v, psi, log.reward[t]))
    return result


def matrices(log, step):
    """A_t (k x d), b_t and C_t of one step (an entry of `steps`)."""
    u, v, psi, reward = step
    k = log.Psi.shape[1]
    return np.outer(u, v), reward * u, np.eye(k) if log.identity else np.outer(psi, psi)


def moments(log):
    """A, b, C: the means of A_t, b_t, C_t over the log."""
    d, k = log.Phi.shape[1], log.Psi.shape[1]
    A, b, C = np.zeros((k, d)), np.zeros(k), np.zeros((k, k))
    for step in steps(log):
        A_t, b_t, C_t = matrices(log, step)
        A += A_t
        b += b_t
        C += C_t
    n = len(log.now)
    return A / n, b / n, C / n


def inverse_root(C):
    """A matrix R with R'R = C^+, the pseudo-inverse in which eigenvalues below the cutoff are zero."""
    values, vectors = np.linalg.eigh(C)
    rows = []
    for i in range(len(values)):
        if values[i] > EIGENVALUE_CUT * values[-1]:
            rows.append(vectors[:, i] / np.sqrt(values[i]))
    return np.array(rows).reshape(-1, len(C))


def objective(log, theta):
    """F(theta) = 1/2 (A theta - b)' C^+ (A theta - b) + ridge/2 |theta|^2."""
    A, b, C = moments(log)
    residual = inverse_root(C) @ (A @ theta - b)
    return 0.5 * residual @ residual + 0.5 * log.ridge * theta @ theta


def minimiser(log):
    """The minimum-norm minimiser of F, zero for features that no `now` row has, and w = C^+ (b - A theta)."""
    A, b, C = moments(log)
    d = log.Phi.shape[1]
    root = inverse_root(C)
    seen = [j for j in range(d) if any(log.Phi[i, j] != 0 for i in log.now)]
    # F is half the squared norm of left @ theta - right.
    left = np.vstack([root @ A, np.sqrt(log.ridge) * np.eye(d)])
    right = np.concatenate([root @ b, np.zeros(d)])
    theta = np.zeros(d)
    theta[seen] = np.linalg.pinv(left[:, seen], rcond=SINGULAR_CUT) @ right
    w = root.T @ (root @ (b - A @ theta))
    return theta, w


def B_t(log, step, theta, w):
    """The saddle-point operator of one step (an entry of `steps`): its theta part and its w part."""
    A_t, b_t, C_t = matrices(log, step)
    return log.ridge * theta - A_t.T @ w, A_t @ theta - b_t + C_t @ w


def B(log, theta, w):
    """The saddle-point operator of the whole log: the mean of B_t."""
    sum_theta, sum_w = np.zeros(len(theta)), np.zeros(len(w))
    for step in steps(log):
        part_theta, part_w = B_t(log, step, theta, w)
        sum_theta += part_theta
        sum_w += part_w
    n = len(log.now)
    return sum_theta / n, sum_w / n


# Algorithms 1 to 3 --------------------------------------------------------------------------------


def pdbg(log, theta, w, iterations, step_theta, step_w):
    """Algorithm 1, primal-dual batch gradient: the trajectory of `iterations` full updates."""
    trajectory = []
    for _ in range(iterations):
        full_theta, full_w = B(log, theta, w)
        theta = theta - step_theta * full_theta
        w = w - step_w * full_w
        trajectory.append((theta.copy(), w.copy()))
    return trajectory


def svrg(log, theta, w, draws, step_theta, step_w):
    """Algorithm 2, SVRG: a new snapshot at the start of each epoch m of N = len(draws[m]) updates."""
    data = steps(log)
    trajectory = []
    for indices in draws:
        snap_theta, snap_w = theta.copy(), w.copy()
        full_theta, full_w = B(log, snap_theta, snap_w)
        for t in indices:
            here_theta, here_w = B_t(log, data[t], theta, w)
            there_theta, there_w = B_t(log, data[t], snap_theta, snap_w)
            theta = theta - step_theta * (here_theta + full_theta - there_theta)
            w = w - step_w * (here_w + full_w - there_w)
            trajectory.append((theta.copy(), w.copy()))
    return trajectory


def saga(log, theta, w, draws, step_theta, step_w):
    """Algorithm 3, SAGA, with one difference: ridge theta (and w, if C = I) is exact and not in the table."""
    data = steps(log)
    n = len(data)

    def gradient(step, theta, w):
        A_t, b_t, C_t = matrices(log, step)
        return -A_t.T @ w, A_t @ theta - b_t + (0.0 if log.identity else C_t @ w)

    g = [gradient(step, theta, w) for step in data]
    mean_theta = sum(g_theta for g_theta, g_w in g) / n
    mean_w = sum(g_w for g_theta, g_w in g) / n
    trajectory = []
    for indices in draws:
        for t in indices:
            h = gradient(data[t], theta, w)
            change_theta, change_w = h[0] - g[t][0], h[1] - g[t][1]
            theta = theta - step_theta * (mean_theta + change_theta + log.ridge * theta)
            w = w - step_w * (mean_w + change_w + (w if log.identity else 0.0))
            mean_theta = mean_theta + change_theta / n
            mean_w = mean_w + change_w / n
            g[t] = h
            trajectory.append((theta.copy(), w.copy()))
    return trajectory


def groups(indices, batch):
    """The draws of an epoch in batches of `batch`; the last one may be shorter."""
    return [indices[start : start + batch] for start in range(0, len(indices), batch)]


def row_part(log, step, theta, w):
    """B_t without the terms that all steps share: ridge theta, and w if C = I."""
    A_t, b_t, C_t = matrices(log, step)
    return -A_t.T @ w, A_t @ theta - b_t + (0.0 if log.identity else C_t @ w)


def svrg_batches(log, theta, w, draws, batch, weight, P_theta, P_w, step_theta, step_w):
    """SVRG with mini-batches of `batch` weighted rows and preconditioners; one trajectory entry per update."""
    data = steps(log)
    trajectory = []
    for indices in draws:
        snap_theta, snap_w = theta.copy(), w.copy()
        full_theta, full_w = B(log, snap_theta, snap_w)
        for group in groups(indices, batch):
            sum_theta, sum_w = np.zeros(len(theta)), np.zeros(len(w))
            for t in group:
                here_theta, here_w = row_part(log, data[t], theta, w)
                there_theta, there_w = row_part(log, data[t], snap_theta, snap_w)
                sum_theta += weight[t] * (here_theta - there_theta) + log.ridge * (theta - snap_theta) + full_theta
                sum_w += weight[t] * (here_w - there_w) + (w - snap_w if log.identity else 0.0) + full_w
            theta = theta - step_theta * P_theta @ sum_theta
            w = w - step_w * P_w @ sum_w
            trajectory.append((theta.copy(), w.copy()))
    return trajectory


def saga_batches(log, theta, w, draws, batch, weight, P_theta, P_w, step_theta, step_w):
    """SAGA with mini-batches of `batch` weighted rows and preconditioners; one trajectory entry per update.

    An entry also holds the mean of the table and the mean iterate over all draws. A row that is drawn several times
    in a batch counts once.
    """
    data = steps(log)
    n = len(data)
    g = [row_part(log, step, theta, w) for step in data]
    trajectory = []
    drawn_at: list[tuple[np.ndarray, np.ndarray]] = []
    for indices in draws:
        for group in groups(indices, batch):
            mean_theta = sum(g_theta for g_theta, g_w in g) / n
            mean_w = sum(g_w for g_theta, g_w in g) / n
            sum_theta = len(group) * (mean_theta + log.ridge * theta)
            sum_w = len(group) * (mean_w + (w if log.identity else 0.0))
            drawn_at += [(theta, w)] * len(group)
            for t in set(group.tolist()):
                h = row_part(log, data[t], theta, w)
                sum_theta += weight[t] * (h[0] - g[t][0])
                sum_w += weight[t] * (h[1] - g[t][1])
                g[t] = h
            theta = theta - step_theta * P_theta @ sum_theta
            w = w - step_w * P_w @ sum_w
            means = sum(g_theta for g_theta, g_w in g) / n, sum(g_w for g_theta, g_w in g) / n
            iterates = [sum(part) / len(drawn_at) for part in zip(*drawn_at, strict=True)]
            trajectory.append((theta.copy(), w.copy(), *means, *iterates))
    return trajectory


# Stochastic approximation -------------------------------------------------------------------------


def shrink(log, j, decay):
    """The factor of the step size at update j, counted from 0 over all epochs; always 1 if decay = inf."""
    return 1.0 / (1.0 + j / (decay * len(log.now)))


def gtd2(log, theta, w, draws, step_theta, step_w, decay):
    """GTD2: both parts of each update use the old theta and the old w."""
    data = steps(log)
    trajectory = []
    for indices in draws:
        for t in indices:
            u, v, psi, reward = data[t]
            factor = shrink(log, len(trajectory), decay)
            delta = reward - v @ theta
            C_w = w if log.identity else psi * (psi @ w)
            change_theta = v * (u @ w) - log.ridge * theta
            change_w = delta * u - C_w
            theta = theta + step_theta * factor * change_theta
            w = w + step_w * factor * change_w
            trajectory.append((theta.copy(), w.copy()))
    return trajectory


def tdc(log, theta, w, draws, step_theta, step_w, decay):
    """TDC in the form whose fixed point is the minimiser, also off-policy and with traces; needs k = d."""
    data = steps(log)
    trajectory = []
    for indices in draws:
        for t in indices:
            u, v, psi, reward = data[t]
            factor = shrink(log, len(trajectory), decay)
            delta = reward - v @ theta
            C_w = w if log.identity else psi * (psi @ w)
            change_theta = delta * u - C_w + v * (u @ w) - log.ridge * theta
            change_w = delta * u - C_w
            theta = theta + step_theta * factor * change_theta
            w = w + step_w * factor * change_w
            trajectory.append((theta.copy(), w.copy()))
    return trajectory


def flstd_sa(log, theta, draws, step, decay):
    """fLSTD-SA: TD on steps drawn from the log, raw iterates (see `averaged`); needs k = d, has no ridge."""
    data = steps(log)
    no_w = np.zeros(log.Psi.shape[1])
    trajectory = []
    for indices in draws:
        for t in indices:
            u, v, _, reward = data[t]
            delta = reward - v @ theta
            theta = theta + step * shrink(log, len(trajectory), decay) * u * delta
            trajectory.append((theta.copy(), no_w.copy()))
    return trajectory


def averaged(trajectory):
    """The running means of a trajectory's thetas: entry j is the mean of the first j + 1 of them."""
    return [np.mean([theta for theta, _ in trajectory[: j + 1]], axis=0) for j in range(len(trajectory))]


def ctd(log, theta, draws, step, averaging):
    """Centred TD: the trajectory of raw iterates, and the snapshots at the end of each epoch; needs k = d.

    The next epoch starts from the snapshot: the mean of the epoch's iterates if `averaging`, else the last.
    """
    data = steps(log)
    A, b, _ = moments(log)
    no_w = np.zeros(log.Psi.shape[1])
    trajectory, snapshots = [], []
    for indices in draws:
        tilde = theta.copy()
        full = b - A @ tilde
        iterates = []
        for t in indices:
            u, v, _, reward = data[t]
            theta = theta + step * (u * (reward - v @ theta) - u * (reward - v @ tilde) + full)
            iterates.append(theta.copy())
            trajectory.append((theta.copy(), no_w.copy()))
        if averaging:
            theta = np.mean(iterates, axis=0)
        snapshots.append(theta.copy())
    return trajectory, snapshots


# One pass in log order ----------------------------------------------------------------------------


def recursive_lstd(log, initial):
    """Recursive LSTD by direct solution: after each step, the regularised saddle-point system of the steps so far."""
    n, d, k = len(log.now), log.Phi.shape[1], log.Psi.shape[1]
    S = np.zeros((d + k, d + k))
    S[:d, :d] = (n * log.ridge + initial) * np.eye(d)
    S[d:, d:] = (initial + (n if log.identity else 0)) * np.eye(k)
    right = np.zeros(d + k)
    trajectory = []
    for u, v, psi, reward in steps(log):
        S[:d, d:] -= np.outer(v, u)
        S[d:, :d] += np.outer(u, v)
        if not log.identity:
            S[d:, d:] += np.outer(psi, psi)
        right[d:] += reward * u
        x = np.linalg.inv(S) @ right
        trajectory.append((x[:d].copy(), x[d:].copy()))
    return trajectory


def ilstd(log, theta, epochs, step, dimensions):
    """iLSTD: one trajectory entry per step of each epoch; only the first epoch adds data. Needs k = d."""
    data = steps(log)
    n, d = len(data), len(theta)
    theta = theta.copy()
    no_w = np.zeros(d)
    A_sum, mu = np.zeros((d, d)), np.zeros(d)
    trajectory = []
    for epoch in range(epochs):
        for t in range(n):
            if epoch == 0:
                u, v, _, reward = data[t]
                A_sum += np.outer(u, v)
                mu += u * (reward - v @ theta)
            steps_seen = t + 1 if epoch == 0 else n
            for _ in range(dimensions):
                j = np.argmax(np.abs(mu))
                change = step / steps_seen * mu[j]
                theta[j] += change
                mu -= change * A_sum[:, j]
            trajectory.append((theta.copy(), no_w.copy()))
    return trajectory


# Small problems -----------------------------------------------------------------------------------


def random_log(rng, n=20, d=4, k=None, ratio=False, trace=0.0, ridge=0.0, identity=False, states=None):
    """A small valid problem: ragged episodes, at least one of length one, the first terminated and the last
    truncated (a single episode is terminated).

    An episode of T steps has T + 1 rows of its own, or visits `states` shared rows if given.
    """
    k = d if k is None else k
    lengths = [1]
    while sum(lengths) < n:
        lengths.append(min(int(rng.integers(1, 8)), n - sum(lengths)))
    lengths = [int(length) for length in rng.permutation(lengths)]
    terminated = [bool(rng.random() < 0.5) for _ in lengths]
    terminated[0] = True
    if len(lengths) > 1:
        terminated[-1] = False

    now, following, discount, episode = [], [], [], []
    rows = 0
    for e, length in enumerate(lengths):
        if states is None:
            path = list(range(rows, rows + length + 1))
            rows += length + 1
        else:
            path = [int(rng.integers(states)) for _ in range(length + 1)]
        for i in range(length):
            ends = terminated[e] and i == length - 1
            now.append(path[i])
            following.append(-1 if ends else path[i + 1])
            discount.append(0.0 if ends else rng.uniform(0.8, 0.99))
            episode.append(e)

    m = rows if states is None else states
    Phi = rng.normal(size=(m, d))
    Phi[:, 0] = 1.0
    Psi = np.hstack([Phi, rng.normal(size=(m, k - d))])
    reward = rng.normal(size=n)
    ratios = rng.lognormal(0.0, 0.5, size=n) if ratio else np.ones(n)
    now, following, discount, episode = map(np.array, (now, following, discount, episode))
    return Log(Phi, Psi, now, following, reward, discount, ratios, episode, trace, ridge, identity)
