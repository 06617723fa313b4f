//! The clusters of a review, with their rules as stored and without the objects that the review leaves out.

use std::collections::BTreeSet;

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::rbac::access::VisibleRbac;
use crowsnest_apimachinery::rbac::{ObjectKind, ObjectName, Rbac};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_search::authorization::{ClusterRules, RulesState};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::body::{Coverage, invalid};
use super::indirect::IndirectPaths;
use super::page::Page;
use super::render;
use super::validation::{self, Removal, ValidatedCoverage};

/// A cluster that the caller may see, before its evaluation.
pub(super) struct CoveredCluster<'c> {
    pub rules: &'c ClusterRules,
    /// Ignored objects that the cluster has.
    removed: Vec<ObjectName>,
}

/// A cluster in evaluation.
pub(super) struct ReviewedCluster<'c> {
    pub rules: &'c ClusterRules,
    /// The rules without the ignored objects; `None` if the cluster has none of these objects.
    reduced: Option<Rbac>,
}

/// Outcome of a row if some objects are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Granted,
    /// Granted only with the ignored objects.
    Lost,
    /// Granted even without the ignored objects.
    Remaining,
}

/// Parts of a review's status, collected cluster by cluster.
pub(super) struct StatusBuilder {
    pub page: Page<(Outcome, Value)>,
    /// States of the clusters.
    pub states: Vec<Value>,
    /// `None` if indirect paths are not searched.
    pub paths: Option<IndirectPaths>,
    /// State of the control plane, if paths into members are searched.
    control_plane: Option<Value>,
    warnings: Vec<String>,
}

/// Validates a review and combines the errors. `kind_fields` is the result for the fields that only its kind has.
pub(super) fn validate<T>(
    kind: &str,
    coverage: &Coverage,
    clusters: &[ClusterRules],
    kind_fields: Result<T, Vec<FieldError>>,
) -> Result<(ValidatedCoverage, T), ApiError> {
    let visible_clusters: BTreeSet<&str> = clusters.iter().map(|rules| rules.cluster.as_str()).collect();
    match (validation::validate_coverage(coverage, &visible_clusters), kind_fields) {
        (Ok(validated_coverage), Ok(kind_fields)) => Ok((validated_coverage, kind_fields)),
        (validated_coverage, kind_fields) => {
            let errors = kind_fields.err().into_iter().flatten().chain(validated_coverage.err().into_iter().flatten());
            Err(invalid(kind, errors.collect()))
        }
    }
}

impl ValidatedCoverage {
    /// True if the cluster is to be reviewed.
    pub fn includes(&self, rules: &ClusterRules) -> bool {
        self.clusters.as_ref().is_none_or(|clusters| clusters.contains(rules.cluster.as_str()))
    }

    /// The clusters with the ignored objects that they contain, and a warning for each ignored object that the caller
    /// sees in none of the reviewed clusters.
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

    /// The clusters to be reviewed, evaluated one after the other. The iterator ends early if the request is cancelled; the
    /// status is then incomplete and is not sent.
    pub fn evaluate_clusters<'c>(
        &self,
        clusters: &[CoveredCluster<'c>],
        cancellation: &CancellationToken,
    ) -> impl Iterator<Item = ReviewedCluster<'c>> {
        let reviewed = clusters.iter().filter(move |cluster| self.includes(cluster.rules));
        reviewed.take_while(move |_| !cancellation.is_cancelled()).map(CoveredCluster::evaluate)
    }

    /// True if indirect paths are searched. They are in the first page only.
    pub fn includes_indirect(&self) -> bool {
        self.indirect && self.after.is_none()
    }

    /// Adds the rows of a page to the status: as the list `granted`, or as `lost` and `remaining`. Returns the token of
    /// the next page and the number of rows after this one.
    fn write_rows(&self, page: Page<(Outcome, Value)>, granted: &str, status: &mut Value) -> Option<(String, usize)> {
        let (rows, next) = page.finish();
        let lists = match self.outcome() {
            Outcome::Granted => vec![(Outcome::Granted, granted)],
            _ => vec![(Outcome::Lost, "lost"), (Outcome::Remaining, "remaining")],
        };
        for (listed, list) in lists {
            let rows = rows.iter().filter(|(outcome, _)| *outcome == listed);
            status[list] = rows.map(|(_, row)| row.clone()).collect();
        }
        next
    }

    /// Outcome of a grant that does not depend on the ignored objects.
    pub fn outcome(&self) -> Outcome {
        if self.without.is_empty() { Outcome::Granted } else { Outcome::Remaining }
    }
}

impl StatusBuilder {
    pub fn new(coverage: &ValidatedCoverage, warnings: Vec<String>) -> Self {
        Self {
            page: Page::new(coverage.after.clone(), coverage.limit),
            states: Vec::new(),
            paths: coverage.includes_indirect().then(IndirectPaths::new),
            control_plane: None,
            warnings,
        }
    }

    /// The control plane, if indirect paths into members are searched and its rules are known. Its state is in the status
    /// even if the control plane itself is not reviewed, because these paths depend on its rules.
    pub fn add_control_plane<'c>(
        &mut self,
        coverage: &ValidatedCoverage,
        clusters: &[CoveredCluster<'c>],
    ) -> Option<ReviewedCluster<'c>> {
        let is_control_plane = |cluster: &CoveredCluster<'_>| cluster.rules.cluster.is_control_plane();
        let is_reviewed_member =
            |cluster: &CoveredCluster<'_>| coverage.includes(cluster.rules) && !is_control_plane(cluster);
        if self.paths.is_none() || !clusters.iter().any(is_reviewed_member) {
            return None;
        }
        let control_plane = clusters.iter().find(|cluster| is_control_plane(cluster));
        self.control_plane = Some(render::control_plane_state(control_plane.map(|cluster| cluster.rules)));
        control_plane.map(CoveredCluster::evaluate).filter(ReviewedCluster::is_known)
    }

    /// The indirect paths, if those of this cluster are searched.
    pub fn paths_of(&mut self, cluster: &ReviewedCluster<'_>) -> Option<&mut IndirectPaths> {
        let paths = self.paths.as_mut().filter(|_| cluster.is_known())?;
        paths.may_search(cluster.name()).then_some(paths)
    }

    /// Adds the parts to a status with the other fields. `granted` is the list of the rows; see
    /// [`ValidatedCoverage::write_rows`].
    pub fn build(self, coverage: &ValidatedCoverage, granted: &str, mut status: Value) -> Value {
        let Self { page, states, paths, control_plane, mut warnings } = self;
        let next = coverage.write_rows(page, granted, &mut status);
        if let Some(paths) = paths {
            paths.finish(&mut status, &mut warnings);
        }
        if let Some(state) = control_plane {
            status["controlPlane"] = state;
        }
        status["clusters"] = states.into();
        status["warnings"] = warnings.into();
        if let Some((token, remaining)) = next {
            status["continue"] = token.into();
            status["remainingItemCount"] = remaining.into();
        }
        status
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

/// Formats the object, such as `RoleBinding shop/web`.
impl std::fmt::Display for Removal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.object, formatter)
    }
}

impl<'c> CoveredCluster<'c> {
    /// Computes the rules without the ignored objects. They are a copy of all rules: keep them for one cluster at a
    /// time.
    pub fn evaluate(&self) -> ReviewedCluster<'c> {
        let reduced = (!self.removed.is_empty()).then(|| {
            let is_visible = self.rules.visibility();
            view(&self.rules.rbac, &is_visible).without_objects(&self.removed)
        });
        ReviewedCluster { rules: self.rules, reduced }
    }
}

impl<'c> ReviewedCluster<'c> {
    pub fn name(&self) -> &'c str {
        self.rules.cluster.as_str()
    }

    /// False if the RBAC objects have not been read completely: no permission can be derived from them.
    pub fn is_known(&self) -> bool {
        !matches!(self.rules.state, RulesState::Unknown { .. })
    }

    /// The rules as stored.
    pub fn stored_rules(&self) -> &Rbac {
        &self.rules.rbac
    }

    /// The rules without the ignored objects; `None` if the cluster has none of them.
    pub fn reduced_rules(&self) -> Option<&Rbac> {
        self.reduced.as_ref()
    }

    /// The rules without the ignored objects, or as stored if the cluster has none of them.
    pub fn effective_rules(&self) -> &Rbac {
        self.reduced.as_ref().unwrap_or(&self.rules.rbac)
    }
}

/// A view of rules; the condition is [`ClusterRules::visibility`].
pub(super) fn view<'r>(
    rbac: &'r Rbac,
    is_visible: &'r (dyn Fn(ObjectKind, &str, &str) -> bool + Sync),
) -> VisibleRbac<'r> {
    VisibleRbac { rbac, is_visible }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_crowsnest_io::body::ActionSpec;

    #[test]
    fn errors_of_all_fields_are_causes() {
        let coverage = Coverage { clusters: vec!["m9".to_owned()], ..Coverage::default() };
        let action = validation::validate_action(&ActionSpec::default(), &coverage);
        let error = validate("ResourceAccessReview", &coverage, &[], action).err().unwrap();
        let causes: Vec<&str> =
            error.details.iter().flat_map(|details| &details.causes).map(|cause| cause.field.as_str()).collect();
        assert_eq!((error.code, causes), (422, vec!["spec.resourceAttributes", "spec.clusters[0]"]));
    }
}
