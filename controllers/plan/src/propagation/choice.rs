//! Selects the policy of a template.
//!
//! A claim is valid while its policy exists and selects the template, unless another policy may preempt it. An
//! unclaimed template is claimed by the best policy of its namespace, otherwise by the best ClusterPropagationPolicy:
//! higher explicit priority first, then the more precise selector, then the smaller name. A preempting policy must
//! select the template by name and namespace.

use std::cmp::Reverse;

use crowsnest_api::policy::{ActivationPreference, PreemptionBehavior, PropagationSpec, ResourceSelector};
use crowsnest_api::{Scope, permanent_id};
use crowsnest_apimachinery::unstructured;
use serde::Serialize;
use serde_json::Value;

use super::claim::Claim;
use crate::selector::{Precision, best_precision, precision_of};

/// A PropagationPolicy or ClusterPropagationPolicy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy<'a> {
    /// Empty for a ClusterPropagationPolicy.
    pub namespace: &'a str,
    pub name: &'a str,
    pub permanent_id: &'a str,
    pub is_terminating: bool,
    pub spec: &'a PropagationSpec,
}

impl<'a> Policy<'a> {
    pub fn new(policy: &'a Value, spec: &'a PropagationSpec) -> Self {
        Policy {
            namespace: unstructured::namespace(policy),
            name: unstructured::name(policy),
            permanent_id: permanent_id::policy_id(policy),
            is_terminating: unstructured::is_terminating(policy),
            spec,
        }
    }
}

impl Policy<'_> {
    /// Label with the policy's permanent id on templates.
    pub fn id_label(&self) -> &'static str {
        permanent_id::policy_label(Scope::from_namespace(self.namespace))
    }

    pub fn priority(&self) -> i32 {
        self.spec.priority.unwrap_or_default()
    }

    /// True if changes of the policy take effect only with the next change of the template.
    pub fn is_lazy(&self) -> bool {
        self.spec.activation_preference == Some(ActivationPreference::Lazy)
    }

    pub fn preempts(&self) -> bool {
        self.spec.preemption == Some(PreemptionBehavior::Always)
    }

    /// Namespace in which a selector of this policy selects objects. `None` if it selects all namespaces or the kind is
    /// cluster-scoped.
    pub fn selector_namespace<'s>(&'s self, selector: &'s ResourceSelector) -> Option<&'s str> {
        match (self.namespace, selector.namespace.as_str()) {
            ("", "") => None,
            ("", namespace) | (namespace, _) => Some(namespace),
        }
    }

    /// True if one of the selectors names exactly this template, by name and namespace.
    fn selects_by_name(&self, template: &Value) -> bool {
        let is_exact = |selector: &&ResourceSelector| {
            let namespace = self.selector_namespace(selector).unwrap_or_default();
            !selector.name.is_empty() && namespace == unstructured::namespace(template)
        };
        let mut selectors = self.spec.resource_selectors.iter().filter(is_exact);
        selectors.any(|selector| precision_of(selector, template).is_some())
    }
}

/// Decision about a template.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice<'a> {
    /// Follow this policy, and claim the template if needed.
    Follow(Policy<'a>),
    /// Take over the template from another policy.
    Preempt(Policy<'a>),
    /// Remove the claim, because its policy no longer exists.
    Release,
    /// The claiming policy no longer selects the template. The claim stays until the policy itself changes, so that
    /// relabelling a template does not remove it from its clusters.
    Unselected(Policy<'a>),
    /// The claiming policy is being deleted; its own reconciliation removes the claim.
    Wait,
    /// No policy selects the template.
    Unmatched,
}

/// A policy that was considered.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsideredPolicy {
    pub namespace: String,
    pub name: String,
    pub priority: i32,
    pub precision: Precision,
    pub outcome: Outcome,
}

/// Reason why a policy was chosen or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// Ranks first for an unclaimed template.
    Chosen,
    /// The template is claimed by this policy, or this policy preempts the claim.
    Claimed,
    LowerPriority,
    LessPrecise,
    LaterName,
    /// A policy of the namespace takes precedence over cluster-scoped ones.
    ClusterScope,
    /// The template is claimed, and the policy cannot preempt the claim.
    NotPreempting,
}

/// Selects among all policies. `preemption` is the feature gate `PropagationPolicyPreemption`. Also returns all
/// policies that select the template, with their outcomes.
pub fn choose<'a>(template: &Value, policies: &[Policy<'a>], preemption: bool) -> (Choice<'a>, Vec<ConsideredPolicy>) {
    let matching: Vec<(Policy<'a>, Precision)> = policies
        .iter()
        .filter(|policy| !policy.is_terminating)
        .filter_map(|policy| Some((*policy, best_precision(&policy.spec.resource_selectors, template)?)))
        .collect();
    let claim = Claim::from_object(template);
    let (choice, winner) = match claim {
        Claim::None => {
            let best = best_policy(&matching);
            (best.map_or(Choice::Unmatched, Choice::Follow), best)
        }
        ref claim => {
            let preemptors: Vec<Policy<'a>> = match preemption {
                true => matching
                    .iter()
                    .map(|(policy, _)| *policy)
                    .filter(|policy| policy.selects_by_name(template))
                    .collect(),
                false => Vec::new(),
            };
            choose_for_claimed(claim, policies, &matching, &preemptors)
        }
    };
    let report = report(&matching, winner, claim != Claim::None);
    (choice, report)
}

/// Ranks by scope (namespaced first), explicit priority, precision and name.
fn best_policy<'a>(matching: &[(Policy<'a>, Precision)]) -> Option<Policy<'a>> {
    let rank = |(policy, precision): &&(Policy<'a>, Precision)| {
        (policy.namespace.is_empty(), Reverse(policy.priority()), Reverse(*precision), policy.name)
    };
    matching.iter().min_by_key(rank).map(|(policy, _)| *policy)
}

fn choose_for_claimed<'a>(
    claim: &Claim,
    policies: &[Policy<'a>],
    matching: &[(Policy<'a>, Precision)],
    preemptors: &[Policy<'a>],
) -> (Choice<'a>, Option<Policy<'a>>) {
    let Some(owner) = policies.iter().find(|policy| claim.refers_to(policy)).copied() else {
        return (Choice::Release, None);
    };
    if owner.is_terminating {
        return (Choice::Wait, None);
    }
    let preemptor = preemptors
        .iter()
        .copied()
        .filter(|policy| policy.preempts() && may_preempt(policy, &owner))
        .min_by_key(|policy| (policy.namespace.is_empty(), Reverse(policy.priority()), policy.name));
    if let Some(preemptor) = preemptor {
        return (Choice::Preempt(preemptor), Some(preemptor));
    }
    match matching.iter().any(|(policy, _)| claim.refers_to(policy)) {
        true => (Choice::Follow(owner), Some(owner)),
        false => (Choice::Unselected(owner), None),
    }
}

/// A namespaced policy preempts any cluster-scoped one. Otherwise the priority must be strictly higher, and a
/// cluster-scoped policy never preempts a namespaced one.
fn may_preempt(policy: &Policy<'_>, owner: &Policy<'_>) -> bool {
    match (policy.namespace.is_empty(), owner.namespace.is_empty()) {
        (false, true) => true,
        (true, false) => false,
        _ => policy.priority() > owner.priority(),
    }
}

fn report(matching: &[(Policy<'_>, Precision)], winner: Option<Policy<'_>>, claimed: bool) -> Vec<ConsideredPolicy> {
    let won = winner.and_then(|winner| matching.iter().find(|(policy, _)| is_same_policy(policy, &winner)).copied());
    let outcome = |policy: &Policy<'_>, precision: Precision| match won {
        Some((winner, _)) if is_same_policy(policy, &winner) && claimed => Outcome::Claimed,
        Some((winner, _)) if is_same_policy(policy, &winner) => Outcome::Chosen,
        _ if claimed => Outcome::NotPreempting,
        Some((winner, _)) if policy.namespace.is_empty() && !winner.namespace.is_empty() => Outcome::ClusterScope,
        Some((winner, _)) if policy.priority() < winner.priority() => Outcome::LowerPriority,
        Some((_, best)) if precision < best => Outcome::LessPrecise,
        _ => Outcome::LaterName,
    };
    matching
        .iter()
        .map(|(policy, precision)| ConsideredPolicy {
            namespace: policy.namespace.to_owned(),
            name: policy.name.to_owned(),
            priority: policy.priority(),
            precision: *precision,
            outcome: outcome(policy, *precision),
        })
        .collect()
}

fn is_same_policy(a: &Policy<'_>, b: &Policy<'_>) -> bool {
    a.namespace == b.namespace && a.name == b.name
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(value: Value) -> PropagationSpec {
        let mut spec: PropagationSpec = serde_json::from_value(value).expect("a policy spec");
        if spec.resource_selectors.is_empty() {
            spec.resource_selectors.push(Default::default());
        }
        for selector in &mut spec.resource_selectors {
            (selector.api_version, selector.kind) = ("v1".to_owned(), "ConfigMap".to_owned());
        }
        spec
    }

    fn policy<'a>(namespace: &'a str, name: &'a str, spec: &'a PropagationSpec) -> Policy<'a> {
        Policy { namespace, name, permanent_id: name, is_terminating: false, spec }
    }

    fn template(claim: Option<(&str, &str)>) -> Value {
        let mut template = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "app", "namespace": "ns", "labels": {"app": "x"}}});
        if let Some((namespace, name)) = claim {
            let policy = spec(json!({}));
            let patch = super::super::claim::patch(&template, &self::policy(namespace, name, &policy));
            json_patch::merge(&mut template, &patch.expect("unclaimed"));
        }
        template
    }

    #[test]
    fn unclaimed_template_takes_the_best_policy() {
        let all = spec(json!({}));
        let named = spec(json!({"resourceSelectors": [{"name": "app"}]}));
        let urgent = spec(json!({"priority": 5}));
        let chosen = |policies: &[Policy<'_>]| match choose(&template(None), policies, true).0 {
            Choice::Follow(policy) => policy.name.to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(chosen(&[policy("ns", "b", &all), policy("ns", "a", &all)]), "a");
        assert_eq!(chosen(&[policy("ns", "a", &all), policy("ns", "z", &named)]), "z");
        assert_eq!(chosen(&[policy("ns", "z", &urgent), policy("ns", "a", &named)]), "z");
        assert_eq!(chosen(&[policy("", "c", &urgent), policy("ns", "n", &all)]), "n");
    }

    #[test]
    fn claim_holds_until_preempted() {
        let plain = spec(json!({}));
        let urgent = spec(json!({"priority": 5, "preemption": "Always", "resourceSelectors": [{"name": "app"}]}));
        let policies = [policy("ns", "old", &plain), policy("ns", "new", &urgent)];
        let claimed = template(Some(("ns", "old")));
        assert!(matches!(choose(&claimed, &policies, true).0, Choice::Preempt(policy) if policy.name == "new"));
        assert!(matches!(choose(&claimed, &policies, false).0, Choice::Follow(policy) if policy.name == "old"));
        assert_eq!(choose(&claimed, &policies[1..], false).0, Choice::Release);
    }

    #[test]
    fn preempting_policy_selects_by_name_and_namespace() {
        let plain = spec(json!({}));
        let taking =
            |selector: Value| spec(json!({"priority": 5, "preemption": "Always", "resourceSelectors": [selector]}));
        let by_all = taking(json!({}));
        let by_name = taking(json!({"name": "app"}));
        let by_both = taking(json!({"name": "app", "namespace": "ns"}));
        for (taking, expected) in [(&by_all, "old"), (&by_name, "old"), (&by_both, "new")] {
            let policies = [policy("", "old", &plain), policy("", "new", taking)];
            let follows = match choose(&template(Some(("", "old"))), &policies, true).0 {
                Choice::Follow(policy) | Choice::Preempt(policy) => policy.name,
                _ => "",
            };
            assert_eq!(follows, expected, "{taking:?}");
        }
    }
}
