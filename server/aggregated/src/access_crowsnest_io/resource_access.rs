//! `resourceaccessreviews`: who may perform an action in each cluster, with the proof.

use std::collections::HashSet;
use std::sync::Arc;

use axum::response::Response;
use crowsnest_apimachinery::rbac::access::{Proof, Scope, VisibleRbac};
use crowsnest_apimachinery::rbac::indirect::SearchedRules;
use crowsnest_apimachinery::rbac::{Action, Subject, VIRTUAL_RESOURCES, selectors};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_proxy::ClusterObserver;
use crowsnest_runtime::roles::RunningRoles;
use crowsnest_search::authorization::ClusterRules;
use http::StatusCode;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::body::{self, ActionSpec};
use super::control_plane::{CredentialSecrets, MemberAccess, credential_secrets};
use super::evaluation::{Outcome, ReviewedCluster, StatusBuilder, validate, view};
use super::indirect::{IndirectPaths, evaluate};
use super::openapi::describe_resource_access;
use super::page::{Numbering, Page};
use super::render::{self, PathRenderer};
use super::validation::{self, ValidatedCoverage};
use super::{API_VERSION, reviews};
use crate::request::audit::AuditObserver;
use crate::request::context::RequestContext;
use crate::resource::{Call, HandledResource};
use crowsnest_process::reply::json as reply;

const KIND: &str = "ResourceAccessReview";

pub(super) static RESOURCE_ACCESS_REVIEWS: HandledResource =
    reviews(["resourceaccessreviews", "resourceaccessreview", KIND], describe_resource_access, |call| {
        Box::pin(review(call))
    });

/// A ResourceAccessReview after validation.
struct ValidatedReview {
    action: Action,
    scope: Scope,
    coverage: ValidatedCoverage,
    credentials: CredentialSecrets,
    warnings: Vec<String>,
}

async fn review(Call { server, context, request }: Call<'_>) -> Result<Response, ApiError> {
    let running = server.running()?;
    let (spec_body, spec, coverage) = body::read_review::<ActionSpec>(KIND, request).await?;
    let clusters = running.cache.searcher().cluster_rules(&context.user).await;
    let requested = validation::validate_action(&spec, &coverage);
    let (coverage, (action, scope)) = validate(KIND, &coverage, &clusters, requested)?;
    record_reviewed_clusters(context, &coverage, &clusters);
    let ignored_selectors = selectors::evaluation_error(&spec_body["resourceAttributes"]);
    let ignored_selectors = Some(ignored_selectors).filter(|message| !message.is_empty());
    let unserved = unserved_warning(running, &coverage, &clusters, &action);
    let warnings = unserved.into_iter().chain(ignored_selectors).collect();
    let review = ValidatedReview { action, scope, coverage, credentials: credential_secrets(running), warnings };
    let status = evaluate(review.coverage.indirect, move |cancellation| review.status(&clusters, cancellation)).await?;
    Ok(review_response(KIND, spec_body, status))
}

/// The response to a review: the review with its status.
pub(super) fn review_response(kind: &str, spec: Value, status: Value) -> Response {
    let body = json!({"apiVersion": API_VERSION, "kind": kind, "metadata": {}, "spec": spec, "status": status});
    reply(StatusCode::CREATED, &body)
}

/// Adds the reviewed clusters to the audit event, because an attacker can use reviews to find targets.
pub(super) fn record_reviewed_clusters(
    context: &RequestContext,
    coverage: &ValidatedCoverage,
    clusters: &[ClusterRules],
) {
    if let Some(record) = &context.audit {
        let reviewed = clusters.iter().filter(|rules| coverage.includes(rules));
        let names: Vec<_> = reviewed.map(|rules| rules.cluster.clone()).collect();
        AuditObserver(Arc::clone(record)).record_clusters(&names);
    }
}

/// A warning if none of the reviewed clusters serves the resource. None if the resources of one of them are not known.
/// The review is evaluated in either case.
fn unserved_warning(
    running: &RunningRoles,
    coverage: &ValidatedCoverage,
    clusters: &[ClusterRules],
    action: &Action,
) -> Option<String> {
    let Action::Resource { group, resource, subresource, .. } = action else { return None };
    if [group, resource].into_iter().any(|word| word == "*") || VIRTUAL_RESOURCES.contains(&resource.as_str()) {
        return None;
    }
    for rules in clusters.iter().filter(|rules| coverage.includes(rules)) {
        let api_resources = running.cache.served_resources(&rules.cluster)?;
        let is_requested =
            |gvr: &crowsnest_apimachinery::names::Gvr| &*gvr.group == group && &*gvr.resource == resource;
        if api_resources.resources.iter().any(|resource| is_requested(&resource.gvr)) {
            return None;
        }
    }
    let dot = if group.is_empty() { "" } else { "." };
    let slash = if subresource.is_empty() { "" } else { "/" };
    Some(format!("no reviewed cluster serves {resource}{dot}{group}{slash}{subresource}"))
}

impl ValidatedReview {
    fn status(self, clusters: &[ClusterRules], cancellation: &CancellationToken) -> Value {
        let (all, unmatched) = self.coverage.apply(clusters);
        let warnings = self.warnings.iter().cloned().chain(unmatched).collect();
        let mut builder = StatusBuilder::new(&self.coverage, warnings);
        let control_plane = builder.add_control_plane(&self.coverage, &all);
        let visibility = control_plane.as_ref().map(|control_plane| control_plane.rules.visibility());
        let control_plane = control_plane
            .as_ref()
            .zip(visibility.as_ref())
            .map(|(control_plane, visibility)| view(control_plane.effective_rules(), visibility));
        for cluster in self.coverage.evaluate_clusters(&all, cancellation) {
            builder.states.push(self.add_direct_grants(&cluster, &mut builder.page));
            if let Some(paths) = builder.paths_of(&cluster) {
                self.add_indirect_paths(&cluster, control_plane, paths);
            }
        }
        builder.build(&self.coverage, "grants", json!({}))
    }

    /// Adds the direct grants of a cluster to the page, and returns the state of the cluster.
    fn add_direct_grants(&self, cluster: &ReviewedCluster<'_>, page: &mut Page<(Outcome, Value)>) -> Value {
        let rules = cluster.rules;
        let name = cluster.name();
        let is_visible = rules.visibility();
        let mut numbering = Numbering::default();
        let outcome = self.coverage.outcome();
        page.add_if_on_page(numbering.key(name, "", ""), || (outcome, render::grant_of_masters(name, &self.action)));
        if !cluster.is_known() {
            return render::cluster_state(rules, &self.scope, &[]);
        }
        let stored_view = view(cluster.stored_rules(), &is_visible);
        let stored_grants = stored_view.who_can(&self.action, &self.scope);
        let reduced = cluster.reduced_rules().map(|rbac| view(rbac, &is_visible));
        let remaining = reduced.map(|view| view.who_can(&self.action, &self.scope).proofs);
        let mut rows: Vec<(Outcome, &Proof<'_>)> = Vec::new();
        match &remaining {
            None => rows.extend(stored_grants.proofs.iter().map(|proof| (outcome, proof))),
            Some(remaining) => {
                let lost = lost_grants(&stored_grants.proofs, remaining, self.scope.is_single());
                rows.extend(lost.into_iter().map(|proof| (Outcome::Lost, proof)));
                rows.extend(remaining.iter().map(|proof| (Outcome::Remaining, proof)));
                rows.sort_by_key(|(_, proof)| (proof.binding.namespace, proof.binding.name));
            }
        }
        for (outcome, proof) in rows {
            let key = numbering.key(name, proof.binding.namespace, proof.binding.name);
            let view = reduced.filter(|_| outcome == Outcome::Remaining).unwrap_or(stored_view);
            page.add_if_on_page(key, || (outcome, render::grant(name, view, proof)));
        }
        render::cluster_state(rules, &self.scope, &stored_grants.missing_roles)
    }

    /// Adds the indirect paths of a cluster, with those through the control plane.
    fn add_indirect_paths(
        &self,
        cluster: &ReviewedCluster<'_>,
        control_plane: Option<VisibleRbac<'_>>,
        paths: &mut IndirectPaths,
    ) {
        let visibility = cluster.rules.visibility();
        let own_view = view(cluster.effective_rules(), &visibility);
        let access = MemberAccess::new(cluster, &self.credentials);
        let through_control_plane = control_plane.and_then(|view| access.through_control_plane(view));
        let direct = own_view.who_can(&self.action, &self.scope).proofs;
        let searched = SearchedRules { cluster: own_view, control_plane: through_control_plane };
        let found = searched.paths_to(&self.action, &self.scope, &direct);
        paths.add(&found, &PathRenderer { cluster: cluster.name(), cluster_view: own_view, control_plane });
    }
}

/// The stored grants whose subject has no remaining grant in the same namespace or in all namespaces. In a scope with
/// one namespace, any remaining grant of the subject allows the action.
fn lost_grants<'p, 'r>(stored: &'p [Proof<'r>], remaining: &[Proof<'r>], is_single: bool) -> Vec<&'p Proof<'r>> {
    let remaining_grants: HashSet<(&Subject, &str)> =
        remaining.iter().map(|proof| (&proof.subject, if is_single { "" } else { proof.binding.namespace })).collect();
    let is_remaining = |proof: &Proof<'_>| {
        remaining_grants.contains(&(&proof.subject, ""))
            || remaining_grants.contains(&(&proof.subject, proof.binding.namespace))
    };
    stored.iter().filter(|proof| !is_remaining(proof)).collect()
}
