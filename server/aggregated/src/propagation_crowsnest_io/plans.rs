//! `plans`: the effect that a change of objects would have. Nothing is written.

use crowsnest_apimachinery::status::ApiError;
use std::collections::BTreeSet;

use axum::response::Response;
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::request::is_path_segment;
use crowsnest_controllers::reports::{AffectedTemplate, Proposal, ProposedOperation, Reports, Role};
use crowsnest_plan::report::{Change, PlanReport, TemplatePlan};
use crowsnest_plan::whatif;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::openapi::{FAILURES, ROOT, ref_to};
use super::permissions::Reader;
use super::{API_VERSION, NAME, reports};
use crate::resource::openapi::Document;
use crate::resource::schema::{JSON, responses};
use crate::resource::{CREATE, Call, Definition, HandledResource, Paths};
use crowsnest_process::reply::collect;
use crowsnest_process::reply::json as reply;

/// Maximum number of objects in one plan.
const MAX_OBJECTS: usize = 100;
/// Default and maximum number of templates in a plan.
const DEFAULT_TEMPLATES: usize = 50;
const MAX_TEMPLATES: usize = 500;

pub(super) static PLANS: HandledResource = HandledResource {
    definition: Definition { singular: "plan", ..Definition::new("plans", "Plan", CREATE, Paths::Collection) },
    describe,
    handler: |call| Box::pin(plan(call)),
};

fn describe(definition: &Definition, document: &mut Document) {
    let content = json!({JSON: {"schema": ref_to("Plan")}});
    let post = json!({"operationId": "plans-create", "tags": ["propagation"],
        "responses": responses("201", content.clone(), &FAILURES),
        "summary": "Previews the effect on the fleet of applying or deleting objects, without changing anything.",
        "requestBody": {"required": true, "content": content}});
    document.add_path(format!("{ROOT}/{}", definition.resource), json!({"post": post}));
}

/// Request body of a plan.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PlanBody {
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    #[serde(default)]
    objects: Vec<Value>,
    /// Objects to delete; only the fields that identify them are read.
    #[serde(default)]
    deletions: Vec<Value>,
    /// Clusters that become unreachable; only the fields that identify them are read.
    #[serde(default)]
    losses: Vec<Value>,
    #[serde(default = "default_true")]
    manifests: bool,
    #[serde(default)]
    limit: Option<usize>,
}

fn default_true() -> bool {
    true
}

impl Spec {
    /// All objects, with their field in the request and the requested change.
    fn proposed_operations<'s>(&'s self) -> impl Iterator<Item = (String, &'s Value, ProposedOperation)> {
        let numbered = |field: &'static str, operation: ProposedOperation| {
            move |(nth, object): (usize, &'s Value)| (format!("spec.{field}[{nth}]"), object, operation)
        };
        let applied = self.objects.iter().enumerate().map(numbered("objects", ProposedOperation::Apply));
        let deleted = self.deletions.iter().enumerate().map(numbered("deletions", ProposedOperation::Delete));
        let lost = self.losses.iter().enumerate().map(numbered("losses", ProposedOperation::Lose));
        applied.chain(deleted).chain(lost)
    }
}

fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn invalid(errors: Vec<FieldError>) -> ApiError {
    ApiError::invalid(NAME, "Plan", "", errors)
}

/// Validates the request.
fn validate(plan: &PlanBody) -> Result<(), ApiError> {
    let is_expected = |field: &Option<String>, expected: &str| field.as_deref().is_none_or(|field| field == expected);
    if !is_expected(&plan.api_version, API_VERSION) || !is_expected(&plan.kind, "Plan") {
        return Err(ApiError::bad_request(format!("the body is not a Plan of {API_VERSION}")));
    }
    let spec = &plan.spec;
    let mut errors = Vec::new();
    let count = spec.proposed_operations().count();
    if count == 0 {
        errors.push(FieldError::required("spec.objects", "a plan must have at least one object"));
    }
    if count > MAX_OBJECTS {
        let detail = format!("a plan must have at most {MAX_OBJECTS} objects");
        errors.push(FieldError::invalid("spec.objects", &count, detail));
    }
    if let Some(limit) = spec.limit.filter(|limit| !(1..=MAX_TEMPLATES).contains(limit)) {
        errors.push(FieldError::invalid("spec.limit", &limit, format!("must be from 1 to {MAX_TEMPLATES}")));
    }
    let mut seen = BTreeSet::new();
    for (path, object, _) in spec.proposed_operations() {
        for field in ["/apiVersion", "/kind", "/metadata/name"] {
            if text(object, field).is_empty() {
                errors.push(FieldError::required(format!("{path}{}", field.replace('/', ".")), ""));
            }
        }
        for pointer in ["/metadata/namespace", "/metadata/name"] {
            let value = text(object, pointer);
            if !is_path_segment(value) {
                let field = format!("{path}{}", pointer.replace('/', "."));
                errors.push(FieldError::invalid(field, &value, "may not be '.' or '..' or contain '/' or '%'"));
            }
        }
        let name = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        if !seen.insert((text(object, "/apiVersion"), text(object, "/kind"), name)) {
            errors.push(FieldError::duplicate(path, &name.1));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(invalid(errors)) }
}

/// Computes the plan for a client's proposal.
async fn plan(Call { server, context, request }: Call<'_>) -> Result<Response, ApiError> {
    let reports = reports(server)?;
    let body = collect(request.into_body()).await?;
    let plan: PlanBody = serde_json::from_slice(&body)
        .map_err(|error| ApiError::bad_request(format!("error decoding the Plan's JSON: {error}")))?;
    validate(&plan)?;
    let authorizer = PlanAuthorizer(Reader { delegated: &server.delegated, user: &context.user });
    let proposal = authorizer.proposal(&reports, &plan.spec).await?;
    let mut selection =
        TemplateSelection { remaining: plan.spec.limit.unwrap_or(DEFAULT_TEMPLATES), ..TemplateSelection::default() };
    let mut planner = reports.planner(&proposal, plan.spec.manifests).await?;
    planner
        .plan(
            &authorizer
                .select_templates(&proposal, reports.find_affected_templates(&proposal).await?, &mut selection)
                .await?,
        )
        .await?;
    // Dependencies result from the first planning step, and the caller must be allowed to get them as well.
    let dependencies = planner.attach_dependencies().await?;
    planner.plan(&authorizer.select_templates(&proposal, dependencies, &mut selection).await?).await?;
    let (plans, mut all_notices) = planner.finish().await?;
    all_notices.extend(notices(&proposal, &plans, plan.spec.manifests));
    let objects = proposal.objects.iter();
    let report = PlanReport {
        objects: objects.map(|object| whatif::plan_object(object.before.as_deref(), object.after.as_ref())).collect(),
        notices: all_notices,
        templates: plans,
        more: selection.more,
        withheld: selection.withheld,
    };
    let status = serde_json::to_value(&report).map_err(ApiError::internal)?;
    let response_body = json!({"apiVersion": API_VERSION, "kind": "Plan", "metadata": {}, "status": status});
    Ok(reply(StatusCode::CREATED, &response_body))
}

/// Templates that are selected for a plan, and numbers of those that are not.
#[derive(Default)]
struct TemplateSelection {
    selected: BTreeSet<AffectedTemplate>,
    /// Number of templates that can still be selected.
    remaining: usize,
    /// Number of templates beyond the limit.
    more: usize,
    /// Number of templates that the caller is not allowed to get.
    withheld: usize,
}

/// Limits the objects and templates of a plan to those that the caller may read.
struct PlanAuthorizer<'r>(Reader<'r>);

impl PlanAuthorizer<'_> {
    /// The proposed objects as they would be stored; the caller must be allowed to read each of them.
    async fn proposal(&self, reports: &Reports, spec: &Spec) -> Result<Proposal, ApiError> {
        let mut proposal = Proposal::default();
        for (field, object, operation) in spec.proposed_operations() {
            let (api_version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
            let resource = reports.find_resource(api_version, kind).await?;
            let (namespace, name) = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
            let Some(role) = reports.role_of(&resource) else {
                let detail = "policies, overrides, customizations, clusters, quotas, rebalancers and what is propagated \
                              can be planned";
                return Err(invalid(vec![FieldError::invalid(format!("{field}.kind"), kind, detail)]));
            };
            if operation == ProposedOperation::Lose && role != Role::Cluster {
                let error = FieldError::invalid(format!("{field}.kind"), kind, "only clusters can be lost");
                return Err(invalid(vec![error]));
            }
            match (resource.namespaced, namespace.is_empty()) {
                (true, true) => {
                    return Err(invalid(vec![FieldError::required(format!("{field}.metadata.namespace"), "")]));
                }
                (false, false) => {
                    let detail = format!("{kind} has no namespace");
                    let error = FieldError::invalid(format!("{field}.metadata.namespace"), namespace, detail);
                    return Err(invalid(vec![error]));
                }
                _ => {}
            }
            if role == Role::Customization && operation == ProposedOperation::Apply {
                self.0.require_create(&resource).await?;
            }
            let readable = self.0.check_proposed(&resource, namespace, name).await?;
            let proposed = reports.propose(resource, role, (object, operation), readable).await?;
            if role == Role::Cluster && proposed.before.is_none() {
                let detail = "the APIs and capacity of a cluster are unknown before it has joined";
                return Err(invalid(vec![FieldError::invalid(format!("{field}.metadata.name"), name, detail)]));
            }
            proposal.objects.push(proposed);
        }
        Ok(proposal)
    }

    /// Selects proposed templates first, then others that the caller may get. The flag is true if the values of a
    /// Secret may be shown. A template that was selected before does not count again.
    async fn select_templates(
        &self,
        proposal: &Proposal,
        affected: BTreeSet<AffectedTemplate>,
        selection: &mut TemplateSelection,
    ) -> Result<Vec<(AffectedTemplate, bool)>, ApiError> {
        let find_proposed = |template: &AffectedTemplate| {
            proposal.objects.iter().find(|object| {
                object.role == Role::Template
                    && object.resource == template.resource
                    && text(object.object(), "/metadata/namespace") == template.namespace
                    && text(object.object(), "/metadata/name") == template.name
            })
        };
        let (proposed_templates, other_templates): (Vec<&AffectedTemplate>, Vec<&AffectedTemplate>) =
            affected.iter().partition(|template| find_proposed(template).is_some());
        let mut templates = Vec::new();
        for template in proposed_templates.into_iter().chain(other_templates) {
            let is_selected = selection.selected.contains(template);
            if selection.remaining == 0 && !is_selected {
                selection.more += 1;
                continue;
            }
            let proposed_object = find_proposed(template);
            if proposed_object.is_some()
                || is_selected
                || self.0.may_get(&template.resource, &template.namespace, &template.name).await?
            {
                selection.remaining -= usize::from(selection.selected.insert(template.clone()));
                templates
                    .push((template.clone(), proposed_object.is_none_or(|proposed_object| proposed_object.readable)));
            } else {
                selection.withheld += 1;
            }
        }
        Ok(templates)
    }
}

/// Effects of a deletion that are not planned.
const UNPLANNED_EFFECTS: [(&str, &str); 2] = [
    ("Namespace", "the objects in the namespace are deleted too; this is not planned"),
    ("CustomResourceDefinition", "the objects of the kind are deleted too; this is not planned"),
];

/// Notices for the reader of a plan.
fn notices(proposal: &Proposal, plans: &[TemplatePlan], manifests: bool) -> Vec<String> {
    let mut notices = Vec::new();
    let is_new = proposal.objects.iter().any(|item| item.role == Role::Template && item.before.is_none());
    let divides = plans.iter().any(|plan| plan.clusters.iter().filter(|item| item.replicas.is_some()).count() > 1);
    if is_new && divides {
        let text = "which of equally good clusters gets a remaining replica depends on the uid of a new object, which is not known yet";
        notices.push(text.to_owned());
    }
    let is_deleted =
        |kind: &str| proposal.objects.iter().any(|item| item.after.is_none() && item.resource.kind == kind);
    for (kind, text) in UNPLANNED_EFFECTS {
        if is_deleted(kind) {
            notices.push(text.to_owned());
        }
    }
    let clusters = || plans.iter().flat_map(|plan| &plan.clusters);
    if manifests && clusters().any(|item| item.change != Change::Removed && item.manifest.is_none()) {
        notices.push("some manifests are omitted: they cannot be computed, or there are too many".to_owned());
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(json!({"spec": {"objects": []}}), "spec.objects: Required value: a plan must have at least one object")]
    #[case(
        json!({"spec": {"objects": [{"kind": "ConfigMap"}], "limit": 0}}),
        "[spec.limit: Invalid value: 0: must be from 1 to 500, spec.objects[0].apiVersion: Required value, spec.objects[0].metadata.name: Required value]"
    )]
    #[case(
        json!({"spec": {"deletions": [{"apiVersion": "v1", "kind": "ConfigMap"}]}}),
        "spec.deletions[0].metadata.name: Required value"
    )]
    #[case(
        json!({"spec": {"deletions": [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a/secrets/b"}}]}}),
        "spec.deletions[0].metadata.name: Invalid value: \"a/secrets/b\": may not be '.' or '..' or contain '/' or '%'"
    )]
    #[case(json!({"kind": "Pod", "spec": {"objects": [1]}}), "the body is not a Plan of propagation.crowsnest.io/v1alpha1")]
    #[case(
        json!({"spec": {"objects": [{"apiVersion": "v1", "kind": "A", "metadata": {"name": "x"}},
            {"apiVersion": "v1", "kind": "A", "metadata": {"name": "x"}}]}}),
        "spec.objects[1]: Duplicate value: \"x\""
    )]
    #[case(
        json!({"spec": {"objects": [{"apiVersion": "v1", "kind": "A", "metadata": {"name": "x"}}],
            "deletions": [{"apiVersion": "v1", "kind": "A", "metadata": {"name": "x"}}]}}),
        "spec.deletions[0]: Duplicate value: \"x\""
    )]
    #[case(
        json!({"spec": {"losses": [{"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster"}]}}),
        "spec.losses[0].metadata.name: Required value"
    )]
    fn invalid_plans_are_refused(#[case] body: Value, #[case] expected: &str) {
        let plan: PlanBody = serde_json::from_value(body).unwrap();
        let failure = validate(&plan).unwrap_err();
        let message = failure.message;
        assert!(message.ends_with(expected), "{message}");
    }
}
