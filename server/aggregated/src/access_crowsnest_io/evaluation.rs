//! The clusters of a review, with their rules as stored and without the objects that the review leaves out.

use std::collections::BTreeSet;

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::rbac::access::VisibleRbac;
use crowsnest_apimachinery::rbac::{ObjectKind, ObjectName, Rbac};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_search::authorization::{ClusterRules, RulesState};
use serde_json::Value;

use super::body::{Coverage, invalid};
use super::page::Page;
use super::validation::{self, Removal, ValidatedCoverage};

/// A cluster that the caller may see, before its evaluation.
pub(super) struct CoveredCluster<'c> {
    pub rules: &'c ClusterRules,
    /// Objects that it has and that are left out.
    removed: Vec<ObjectName>,
}

/// A cluster in evaluation.
pub(super) struct ReviewedCluster<'c> {
    pub rules: &'c ClusterRules,
    /// The rules without the objects that are left out, if it has any of them.
    rest: Option<Rbac>,
}

/// Outcome of a row with respect to the objects that are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Granted,
    /// Lost without the objects.
    Lost,
    /// Granted without the objects, too.
    Remaining,
}

/// Validates a review; `own` is the result for the fields that only its kind has.
pub(super) fn validate<T>(
    kind: &str,
    coverage: &Coverage,
    clusters: &[ClusterRules],
    own: Result<T, Vec<FieldError>>,
) -> Result<(ValidatedCoverage, T), ApiError> {
    let known: BTreeSet<&str> = clusters.iter().map(|rules| rules.cluster.as_str()).collect();
    match (validation::validate_coverage(coverage, &known), own) {
        (Ok(covered), Ok(own)) => Ok((covered, own)),
        (covered, own) => {
            let errors = own.err().into_iter().flatten().chain(covered.err().into_iter().flatten());
            Err(invalid(kind, errors.collect()))
        }
    }
}

impl ValidatedCoverage {
    pub fn includes(&self, rules: &ClusterRules) -> bool {
        self.clusters.as_ref().is_none_or(|clusters| clusters.contains(rules.cluster.as_str()))
    }

    /// The clusters without the objects that are left out, and a warning for each object that none of the reviewed clusters
    /// has, as far as the caller may list it.
    pub fn apply<'c>(&self, clusters: &'c [ClusterRules]) -> (Vec<CoveredCluster<'c>>, Vec<String>) {
        let mut found = vec![false; self.without.len()];
        let reviewed = clusters.iter().map(|rules| {
            let mut removed = Vec::new();
            for (removal, found) in self.without.iter().zip(&mut found) {
                if removal.is_in(rules) {
                    *found |= self.includes(rules);
                    removed.push(removal.object.clone());
                }
            }
            CoveredCluster { rules, removed }
        });
        let reviewed = reviewed.collect();
        let missing = self.without.iter().zip(found).filter(|(_, found)| !found);
        let warning = |(removal, _): (&Removal, bool)| format!("no reviewed cluster has {removal} that you may list");
        (reviewed, missing.map(warning).collect())
    }

    /// True if indirect paths are searched. They are in the first page only.
    pub fn includes_indirect(&self) -> bool {
        self.indirect && self.after.is_none()
    }

    /// Adds the rows of a page to the status: as `granted`, or what is lost and what remains. Returns the next page.
    pub fn finish(&self, page: Page<(Outcome, Value)>, granted: &str, status: &mut Value) -> Option<(String, usize)> {
        let (rows, next) = page.finish();
        let lists = match self.outcome() {
            Outcome::Granted => vec![(Outcome::Granted, granted)],
            _ => vec![(Outcome::Lost, "lost"), (Outcome::Remaining, "remaining")],
        };
        for (of, list) in lists {
            let rows = rows.iter().filter(|(outcome, _)| *outcome == of);
            status[list] = rows.map(|(_, row)| row.clone()).collect();
        }
        next
    }

    /// Outcome of a right that holds without the objects that are left out.
    pub fn outcome(&self) -> Outcome {
        if self.without.is_empty() { Outcome::Granted } else { Outcome::Remaining }
    }
}

impl Removal {
    fn is_in(&self, rules: &ClusterRules) -> bool {
        let object = &self.object;
        self.cluster.as_deref().is_none_or(|cluster| cluster == rules.cluster.as_str())
            && rules.is_visible(object.kind, &object.namespace, &object.name)
            && rules.rbac.contains(object)
    }
}

/// `RoleBinding shop/web`
impl std::fmt::Display for Removal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.object, formatter)
    }
}

impl<'c> CoveredCluster<'c> {
    /// Computes the rules without the objects that are left out. They are a copy: keep them for one cluster at a time.
    pub fn evaluate(&self) -> ReviewedCluster<'c> {
        let rest = (!self.removed.is_empty()).then(|| self.rules.rbac.without(&self.removed));
        ReviewedCluster { rules: self.rules, rest }
    }
}

impl<'c> ReviewedCluster<'c> {
    pub fn name(&self) -> &'c str {
        self.rules.cluster.as_str()
    }

    /// False if the RBAC objects have not been read completely: no right can be derived from them.
    pub fn is_known(&self) -> bool {
        !matches!(self.rules.state, RulesState::Unknown { .. })
    }

    /// The rules as stored.
    pub fn before(&self) -> &Rbac {
        &self.rules.rbac
    }

    /// The rules without the objects that are left out; `None` if the cluster has none of them.
    pub fn without(&self) -> Option<&Rbac> {
        self.rest.as_ref()
    }

    pub fn after(&self) -> &Rbac {
        self.rest.as_ref().unwrap_or(&self.rules.rbac)
    }
}

/// A view of rules; the condition is [`ClusterRules::visibility`].
pub(super) fn view<'r>(
    rbac: &'r Rbac,
    is_visible: &'r (dyn Fn(ObjectKind, &str, &str) -> bool + Sync),
) -> VisibleRbac<'r> {
    VisibleRbac { rbac, is_visible }
}
