"""Choose a ridge by held-out error, with whole episodes held out."""

from sklearn.model_selection import GridSearchCV, GroupKFold

import valuefit as vf

log = vf.datasets.mountain_car.sarsa(episodes=1000, seed=0).log(10_000, seed=1)
search = GridSearchCV(
    vf.PolicyEvaluator(features="fourier:order=5", discount=0.99),
    {"ridge": [0.0, 1e-6, 1e-5, 1e-4, 1e-3]},
    cv=GroupKFold(5),
).fit(log, groups=log.episode)

# The score selects the ridge with the smallest held-out MSPBE; check its effect on the policy value, too.
print("ridge    held-out MSPBE  policy value")
for ridge, score in zip(search.cv_results_["param_ridge"], search.cv_results_["mean_test_score"], strict=True):
    value = vf.evaluate(log, features="fourier:order=5", discount=0.99, ridge=float(ridge)).policy_value
    mark = "<- best" if ridge == search.best_params_["ridge"] else ""
    print(f"{ridge:<8g} {-score:<14.3g}  {value.estimate:.1f} +- {value.standard_error:.1f} {mark}")
