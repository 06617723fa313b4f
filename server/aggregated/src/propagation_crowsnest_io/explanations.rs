//! `explanations` and `clusterexplanations`: why a template is in its clusters, and what it waits for.

use axum::response::Response;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_plan::report::Explanation;
use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::{Value, json};

use super::openapi::{FAILURES, ROOT, ref_to};
use super::permissions::{Reader, get_attributes};
use super::{API_VERSION, reports};
use crate::resource::openapi::Document;
use crate::resource::schema::{JSON, in_path, responses};
use crate::resource::{Call, Definition, GET, Paths, Resource};
use crowsnest_process::reply::json as reply;

/// Explanations of templates, with or without a namespace.
pub(super) struct Explanations(Definition);

pub(super) static CLUSTER_SCOPED: Explanations =
    Explanations(definition("clusterexplanations", "clusterexplanation", "ClusterExplanation"));
pub(super) static NAMESPACED: Explanations =
    Explanations(Definition { namespaced: true, ..definition("explanations", "explanation", "Explanation") });

const fn definition(resource: &'static str, singular: &'static str, kind: &'static str) -> Definition {
    Definition { singular, route: "explanations", ..Definition::new(resource, kind, GET, Paths::Object) }
}

impl Resource for Explanations {
    fn definition(&self) -> &Definition {
        &self.0
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        describe(document, &self.0);
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move { explain(call).await })
    }
}

/// Explains the template that the request names: `<resource>.<group>:<name>`.
async fn explain(Call { server, context, .. }: Call<'_>) -> Result<Response, ApiError> {
    let (namespace, template_name) = (context.namespace(), context.name());
    let Some((resource_name, name)) =
        template_name.split_once(':').filter(|(resource, name)| !resource.is_empty() && !name.is_empty())
    else {
        let text = format!(
            "invalid template {template_name:?}: expected <resource>.<group>:<name>, such as deployments.apps:web"
        );
        return Err(ApiError::bad_request(text));
    };
    let reports = reports(server)?;
    let resource =
        reports.template_resource(resource_name).filter(|resource| resource.namespaced != namespace.is_empty());
    let Some(resource) = resource else {
        let scope = if namespace.is_empty() { "cluster-scoped" } else { "namespaced" };
        let text = format!("no propagated {scope} resource is named {resource_name:?}");
        return Err(ApiError::new(Reason::NotFound, text));
    };
    let reader = Reader { delegated: &server.delegated, user: &context.user };
    reader.require(&get_attributes(&resource, namespace, name)).await?;
    let api_version = resource.gvr.api_version();
    let template = ObjectIdentity::new(&api_version, &resource.kind, namespace, name);
    let binding = reports.binding_key(&template).await?;
    reader.require(&get_attributes(reports.binding_resource(binding.scope()), namespace, &binding.name)).await?;
    let explanation = reports.explain(&resource, namespace, name).await?;
    let gvr = &resource.gvr;
    let explanation = explanation.ok_or_else(|| ApiError::not_found(&gvr.group, &gvr.resource, name))?;
    Ok(reply(StatusCode::OK, &to_body(&explanation, namespace, template_name)?))
}

fn to_body(explanation: &Explanation, namespace: &str, name: &str) -> Result<Value, ApiError> {
    let mut body = serde_json::to_value(explanation).map_err(ApiError::internal)?;
    body["apiVersion"] = API_VERSION.into();
    body["kind"] = if namespace.is_empty() { "ClusterExplanation" } else { "Explanation" }.into();
    body["metadata"] = json!({"name": name});
    if !namespace.is_empty() {
        body["metadata"]["namespace"] = namespace.into();
    }
    Ok(body)
}

fn describe(document: &mut Document, definition: &Definition) {
    let name = in_path(
        "name",
        "The template: its resource, a dot and its group if it has one, a colon, its name (deployments.apps:web).",
    );
    let namespace = definition.namespaced.then(|| in_path("namespace", "The template's."));
    let parameters: Vec<Value> = namespace.into_iter().chain([name]).collect();
    let scope = if definition.namespaced { "namespaces/{namespace}/" } else { "" };
    let content = json!({JSON: {"schema": ref_to(definition.kind)}});
    let get = json!({"operationId": format!("{}-get", definition.resource), "tags": ["propagation"],
        "parameters": parameters, "responses": responses("200", content, &FAILURES),
        "summary": "Explains the placement of an object, and what it waits for."});
    document.add_path(format!("{ROOT}/{scope}{}/{{name}}", definition.resource), json!({"get": get}));
}
