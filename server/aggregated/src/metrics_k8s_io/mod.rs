//! `metrics.k8s.io`: usage of the members' nodes and pods, as Karmada's metrics adapter serves it. The control plane's RBAC
//! authorizes the request; members are read with our own rights there.

pub mod openapi;

use async_trait::async_trait;
use axum::extract::Request;
use axum::response::Response;
use crowsnest_api::aggregated_groups;
use crowsnest_apimachinery::request::is_path_segment;
use crowsnest_apimachinery::status::ApiError;

use crate::forwarding::{incoming, outgoing};

use crate::request::context::RequestContext;
use crate::resource::openapi::Document;
use crate::resource::registry::Group;
use crate::resource::{Definition, Paths, READ, Resource};
use crate::server::Aggregated;

const NAME: &str = aggregated_groups::METRICS.name;
const VERSION: &str = "v1beta1";

pub const GROUP: Group =
    Group { schemas: openapi::schemas, ..Group::new(&aggregated_groups::METRICS, &[&Nodes, &Pods]) };

struct Nodes;
struct Pods;

#[async_trait]
impl Resource for Nodes {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition =
            Definition { route: NAME, ..Definition::new("nodes", "NodeMetrics", READ, Paths::CollectionAndObject) };
        &DEFINITION
    }

    fn applies_field_selector(&self) -> bool {
        true
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        openapi::describe_nodes(document);
    }

    async fn serve(
        &self,
        server: &Aggregated,
        context: &RequestContext,
        request: Request,
    ) -> Result<Response, ApiError> {
        usage(server, context, request).await
    }
}

#[async_trait]
impl Resource for Pods {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = Definition {
            namespaced: true,
            route: NAME,
            ..Definition::new("pods", "PodMetrics", READ, Paths::CollectionAndObject)
        };
        &DEFINITION
    }

    fn applies_field_selector(&self) -> bool {
        true
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        openapi::describe_pods(document);
    }

    async fn serve(
        &self,
        server: &Aggregated,
        context: &RequestContext,
        request: Request,
    ) -> Result<Response, ApiError> {
        usage(server, context, request).await
    }
}

async fn usage(server: &Aggregated, context: &RequestContext, request: Request) -> Result<Response, ApiError> {
    check_names(context)?;
    Ok(incoming(server.running()?.proxy.usage(&context.attributes.path, outgoing(request)).await))
}

/// Members are read with our own rights, so a path must have the same meaning in all of them: no part of it may be more than
/// a name.
pub fn check_names(context: &RequestContext) -> Result<(), ApiError> {
    match is_path_segment(context.namespace()) && is_path_segment(context.name()) {
        true => Ok(()),
        false => Err(ApiError::unknown_resource()),
    }
}
