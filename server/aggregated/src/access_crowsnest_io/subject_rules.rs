//! `subjectrulesreviews`: the roles of a user or group in each cluster, with the bindings that grant them.

use std::collections::HashSet;

use axum::response::Response;
use crowsnest_apimachinery::rbac::PolicyRule;
use crowsnest_apimachinery::rbac::access::{BoundRole, Scope, VisibleRbac};
use crowsnest_apimachinery::rbac::indirect::{Identities, SearchedRules};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::{UNAUTHENTICATED, UserInfo, parse_service_account_user, service_account_groups};
use crowsnest_search::authorization::ClusterRules;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::body::{self, SubjectSpec};
use super::control_plane::{CredentialSecrets, MemberAccess, credential_secrets};
use super::evaluation::{Outcome, ReviewedCluster, StatusBuilder, validate, view};
use super::indirect::{IndirectPaths, evaluate};
use super::openapi::describe_subject_rules;
use super::page::{Numbering, Page};
use super::render::{self, PathRenderer};
use super::resource_access::{record_reviewed_clusters, review_response};
use super::reviews;
use super::validation::{self, ValidatedCoverage};
use crate::resource::{Call, HandledResource};

const KIND: &str = "SubjectRulesReview";

pub(super) static SUBJECT_RULES_REVIEWS: HandledResource =
    reviews(["subjectrulesreviews", "subjectrulesreview", KIND], describe_subject_rules, |call| Box::pin(review(call)));

/// A SubjectRulesReview after validation.
struct ValidatedReview {
    user: UserInfo,
    scope: Scope,
    coverage: ValidatedCoverage,
    credentials: CredentialSecrets,
}

/// The control plane, with the identities that the subject can take in it.
type SearchedControlPlane<'s, 'r> = (VisibleRbac<'r>, &'s Identities<'r>);

async fn review(Call { server, context, request }: Call<'_>) -> Result<Response, ApiError> {
    let running = server.running()?;
    let (spec_body, spec, coverage) = body::read_review::<SubjectSpec>(KIND, request).await?;
    let clusters = running.cache.searcher().cluster_rules(&context.user).await;
    let (coverage, scope) = validate(KIND, &coverage, &clusters, validation::validate_subject(&spec, &coverage))?;
    record_reviewed_clusters(context, &coverage, &clusters);
    let review =
        ValidatedReview { user: subject_user(spec), scope, coverage, credentials: credential_secrets(running) };
    let status = evaluate(review.coverage.indirect, move |cancellation| review.status(&clusters, cancellation)).await?;
    Ok(review_response(KIND, spec_body, status))
}

/// The subject with the groups that API servers add. Other groups are not guessed.
fn subject_user(spec: SubjectSpec) -> UserInfo {
    let mut groups = spec.groups;
    if let Some((namespace, _)) = parse_service_account_user(&spec.user) {
        groups.extend(service_account_groups(namespace));
    }
    let is_anonymous = groups.iter().any(|group| group == UNAUTHENTICATED);
    let mut user = UserInfo { name: spec.user, uid: spec.uid, groups, ..UserInfo::default() };
    if !is_anonymous {
        user = user.with_implied_groups();
    }
    user.groups.sort_unstable();
    user.groups.dedup();
    user
}

impl ValidatedReview {
    fn status(self, clusters: &[ClusterRules], cancellation: &CancellationToken) -> Value {
        let (all, warnings) = self.coverage.apply(clusters);
        let mut builder = StatusBuilder::new(&self.coverage, warnings);
        let control_plane = builder.add_control_plane(&self.coverage, &all);
        let visibility = control_plane.as_ref().map(|control_plane| control_plane.rules.visibility());
        let view = control_plane
            .as_ref()
            .zip(visibility.as_ref())
            .map(|(control_plane, visibility)| view(control_plane.effective_rules(), visibility));
        let identities = view.map(|view| Identities::in_control_plane(view, &self.user));
        let control_plane = view.zip(identities.as_ref());
        for cluster in self.coverage.evaluate_clusters(&all, cancellation) {
            builder.states.push(self.add_roles(&cluster, &mut builder.page));
            if let Some(paths) = builder.paths_of(&cluster) {
                self.add_indirect_paths(&cluster, control_plane, paths);
            }
        }
        builder.build(&self.coverage, "roles", json!({"groups": self.user.groups}))
    }

    /// Adds the roles of the subject in a cluster to the page, and returns the state of the cluster.
    fn add_roles(&self, cluster: &ReviewedCluster<'_>, page: &mut Page<(Outcome, Value)>) -> Value {
        let (rules, name, outcome) = (cluster.rules, cluster.name(), self.coverage.outcome());
        let is_visible = rules.visibility();
        let mut numbering = Numbering::default();
        if self.user.is_master() {
            page.add_if_on_page(numbering.key(name, "", ""), || (outcome, render::role_of_masters(name)));
        }
        if !cluster.is_known() {
            return render::cluster_state(rules, &self.scope, &[]);
        }
        let (stored, missing) = view(cluster.stored_rules(), &is_visible).roles_of(&self.user, &self.scope);
        let remaining = cluster.reduced_rules().map(|rbac| view(rbac, &is_visible).roles_of(&self.user, &self.scope).0);
        for (outcome, role) in classify_roles(outcome, &stored, remaining.as_deref()) {
            page.add_if_on_page(numbering.key(name, role.binding.namespace, role.binding.name), || {
                (outcome, render::bound_role(name, role))
            });
        }
        render::cluster_state(rules, &self.scope, &missing)
    }

    /// Adds the subjects that the subject can become in a cluster, and the ways into it through the control plane.
    fn add_indirect_paths(
        &self,
        cluster: &ReviewedCluster<'_>,
        control_plane: Option<SearchedControlPlane<'_, '_>>,
        paths: &mut IndirectPaths,
    ) {
        let is_visible = cluster.rules.visibility();
        let own_view = view(cluster.effective_rules(), &is_visible);
        let (control_plane_view, identities) = control_plane.unzip();
        let access = MemberAccess::new(cluster, &self.credentials);
        let through_control_plane = control_plane_view.and_then(|view| access.through_control_plane(view));
        let identities = identities.filter(|_| through_control_plane.is_some());
        let searched = SearchedRules { cluster: own_view, control_plane: through_control_plane };
        let found = searched.paths_from(&self.user, identities);
        let renderer =
            PathRenderer { cluster: cluster.name(), cluster_view: own_view, control_plane: control_plane_view };
        paths.add(&found, &renderer);
    }
}

/// All stored roles with `outcome`. If the review ignores some objects, instead the roles that are lost and those that
/// remain, in the order of their bindings. A remaining role without rules is omitted, because it grants nothing.
fn classify_roles<'h, 'r>(
    outcome: Outcome,
    stored: &'h [BoundRole<'r>],
    remaining: Option<&'h [BoundRole<'r>]>,
) -> Vec<(Outcome, &'h BoundRole<'r>)> {
    let Some(remaining) = remaining else { return stored.iter().map(|role| (outcome, role)).collect() };
    let remaining_roles: HashSet<_> = remaining.iter().map(role_key).collect();
    let lost = stored.iter().filter(|role| !remaining_roles.contains(&role_key(role)));
    let granting = remaining.iter().filter(|role| !role.rules.is_empty());
    let mut rows: Vec<_> = lost.map(|role| (Outcome::Lost, role)).collect();
    rows.extend(granting.map(|role| (Outcome::Remaining, role)));
    rows.sort_by_key(|(_, role)| (role.binding.namespace, role.binding.name));
    rows
}

/// Key that compares roles by binding and rules: a role that keeps only some of its rules counts as lost, and as a
/// remaining role with the other rules.
fn role_key<'h>(role: &BoundRole<'h>) -> (&'h str, &'h str, &'h [PolicyRule]) {
    (role.binding.namespace, role.binding.name, role.rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::rbac::{ObjectKind, ObjectName, Rbac};

    /// `view` aggregates `pods` and `more`.
    fn rbac() -> Rbac {
        let mut rbac = Rbac::default();
        let rule = |resource: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
        for (name, rules) in [
            ("pods", json!([rule("pods")])),
            ("more", json!([rule("services")])),
            ("view", json!([rule("services"), rule("pods")])),
            ("empty", json!([])),
        ] {
            let aggregation = json!({"clusterRoleSelectors": [{"matchLabels": {"to": "view"}}]});
            let (labels, aggregation) = match name {
                "view" => (Value::Null, aggregation),
                _ => (json!({"to": "view"}), Value::Null),
            };
            let role = json!({"metadata": {"labels": labels}, "rules": rules, "aggregationRule": aggregation});
            rbac.put_role("", name, serde_json::from_value(role).unwrap());
        }
        for name in ["view", "empty"] {
            let subjects = json!([{"kind": "User", "name": "ann"}]);
            let binding = json!({"roleRef": {"kind": "ClusterRole", "name": name}, "subjects": subjects});
            rbac.put_binding("", name, serde_json::from_value(binding).unwrap());
        }
        rbac
    }

    #[rstest::rstest]
    #[case::nothing(&[], &["Granted empty 0", "Granted view 2"])]
    #[case::a_part(&["more"], &["Lost view 2", "Remaining view 1"])]
    #[case::all_parts(&["more", "pods"], &["Lost view 2"])]
    #[case::the_role(&["view"], &["Lost view 2"])]
    fn roles_without_rules_do_not_remain(#[case] without: &[&str], #[case] expected: &[&str]) {
        let of_role = |name: &&str| ObjectName {
            kind: ObjectKind::ClusterRole,
            namespace: String::new(),
            name: (*name).to_owned(),
        };
        let stored = rbac();
        let removed: Vec<ObjectName> = without.iter().map(of_role).collect();
        let is_visible = |_: ObjectKind, _: &str, _: &str| true;
        let rest = (!removed.is_empty()).then(|| view(&stored, &is_visible).without_objects(&removed));
        let ann = UserInfo::new("ann", ["staff"]);
        let before = view(&stored, &is_visible).roles_of(&ann, &Scope::cluster()).0;
        let after = rest.as_ref().map(|rest| view(rest, &is_visible).roles_of(&ann, &Scope::cluster()).0);
        let rows = classify_roles(Outcome::Granted, &before, after.as_deref());
        let shown = |(outcome, role): &(Outcome, &BoundRole<'_>)| {
            format!("{outcome:?} {} {}", role.binding.name, role.rules.len())
        };
        assert_eq!(rows.iter().map(shown).collect::<Vec<_>>(), expected);
    }

    #[rstest::rstest]
    #[case::a_user("ann", &["staff"], "staff system:authenticated")]
    #[case::a_service_account("system:serviceaccount:shop:robot", &[], "system:authenticated system:serviceaccounts system:serviceaccounts:shop")]
    #[case::a_group("", &["sre"], "sre system:authenticated")]
    #[case::anonymous("system:anonymous", &[], "system:unauthenticated")]
    #[case::the_group_of_anonymous("", &["system:unauthenticated"], "system:unauthenticated")]
    fn groups_that_api_servers_add_are_included(#[case] user: &str, #[case] groups: &[&str], #[case] expected: &str) {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let user = subject_user(SubjectSpec { user: user.to_owned(), groups, ..SubjectSpec::default() });
        assert_eq!(user.groups.join(" "), expected);
    }
}
