"""Choose a penalty by held-out error, with whole episodes held out."""

from sklearn.model_selection import GridSearchCV, GroupKFold

import valuefit as vf

log = vf.datasets.mountain_car.sarsa(episodes=1000, seed=0).log(10_000, seed=1)
search = GridSearchCV(
    vf.PolicyEvaluator(features="fourier:order=5", discount=0.99),
    {"penalty": [0.0, 1e-5, 1e-4, 1e-3, 1e-2]},
    cv=GroupKFold(5),
).fit(log, groups=log.episode)

# The score is minus the held-out error of the value function; check the effect on the policy value, too.
print("penalty  held-out error  policy value")
for penalty, score in zip(search.cv_results_["param_penalty"], search.cv_results_["mean_test_score"], strict=True):
    value = vf.evaluate(log, features="fourier:order=5", discount=0.99, penalty=float(penalty)).policy_value
    mark = "<- best" if penalty == search.best_params_["penalty"] else ""
    print(f"{penalty:<8g} {-score:<14.3g}  {value.estimate:.1f} +- {value.standard_error:.1f} {mark}")
