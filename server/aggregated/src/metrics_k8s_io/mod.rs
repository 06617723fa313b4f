//! `metrics.k8s.io`: usage of the members' nodes and pods, as Karmada's metrics adapter serves it. The control plane's RBAC
//! authorizes the request; members are read with the account of this server.

pub mod openapi;

use axum::response::Response;
use crowsnest_api::aggregated_groups;
use crowsnest_apimachinery::request::is_path_segment;
use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;

use crate::forwarding::{to_proxy_request, to_response};
use crate::request::context::RequestContext;
use crate::resource::openapi::Document;
use crate::resource::registry::Group;
use crate::resource::{Call, Definition, Paths, READ, Resource};

const NAME: &str = aggregated_groups::METRICS.name;
const VERSION: &str = "v1beta1";

const RESOURCES: &[&dyn Resource] = &[&NODES, &PODS];

pub const GROUP: Group = Group { schemas: openapi::schemas, ..Group::new(&aggregated_groups::METRICS, RESOURCES) };

/// Resource with the usage of nodes or of pods.
struct Usage {
    definition: Definition,
    describe: fn(&mut Document),
}

static NODES: Usage = Usage {
    definition: Definition { route: NAME, ..Definition::new("nodes", "NodeMetrics", READ, Paths::CollectionAndObject) },
    describe: openapi::describe_nodes,
};

static PODS: Usage = Usage {
    definition: Definition {
        namespaced: true,
        route: NAME,
        ..Definition::new("pods", "PodMetrics", READ, Paths::CollectionAndObject)
    },
    describe: openapi::describe_pods,
};

impl Resource for Usage {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn applies_field_selector(&self) -> bool {
        true
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        (self.describe)(document);
    }

    fn serve<'a>(&'a self, Call { server, context, request }: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move {
            check_names(context)?;
            Ok(to_response(
                server.running()?.proxy.serve_usage(&context.attributes.path, to_proxy_request(request)).await,
            ))
        })
    }
}

/// Refuses names that are not plain path segments. Members are read with the account of this server, so a path must
/// have the same meaning in all of them.
pub fn check_names(context: &RequestContext) -> Result<(), ApiError> {
    match is_path_segment(context.namespace()) && is_path_segment(context.name()) {
        true => Ok(()),
        false => Err(ApiError::unknown_resource()),
    }
}
