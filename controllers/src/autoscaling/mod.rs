//! Autoscaling across clusters: controllers that write the `scale` subresource of templates by metrics or schedule,
//! and controllers that synchronize template replicas with autoscalers in members.

mod cron_federated_hpa;
pub mod deployment_replicas_syncer;
mod federated_hpa;
pub mod hpa_scale_target_marker;

use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference;
use serde_json::Value;

use crate::Error;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::{DynamicClient, Resource, Target};

pub use self::cron_federated_hpa::CronFederatedHpaController;
pub use self::federated_hpa::FederatedHpaController;

/// A `scale` subresource.
#[derive(Debug)]
struct Scale {
    object: Value,
    /// `spec.replicas`.
    replicas: i32,
    /// `status.replicas`.
    status_replicas: i32,
    selector: String,
}

impl Scale {
    fn from_object(object: Value) -> Self {
        let replicas = |part| {
            let replicas = unstructured::integer(&object, &[part, "replicas"]).unwrap_or_default();
            i32::try_from(replicas).unwrap_or(i32::MAX)
        };
        let (desired, status_replicas) = (replicas("spec"), replicas("status"));
        let selector = unstructured::text(&object, &["status", "selector"]).to_owned();
        Scale { object, replicas: desired, status_replicas, selector }
    }

    /// The scale with other replicas.
    fn with_replicas(mut self, replicas: i32) -> Value {
        unstructured::set(&mut self.object, &["spec", "replicas"], replicas.into());
        self.object
    }
}

/// Gets the scale of an object.
async fn get_scale(objects: &DynamicClient, target: Target<'_>) -> Result<Scale, Error> {
    match objects.get(target.scale()).await? {
        Some(object) => Ok(Scale::from_object(object)),
        None => Err(Error::Other(not_found_message(target.resource, target.name))),
    }
}

/// Message of an API server for a missing object.
fn not_found_message(resource: &Resource, name: &str) -> String {
    let (group, resource) = (&resource.gvr.group, &resource.gvr.resource);
    match group.is_empty() {
        true => format!("{resource} {name:?} not found"),
        false => format!("{resource}.{group} {name:?} not found"),
    }
}

/// Finds the resource of a kind in the control plane.
async fn find_resource(context: &Context, api_version: &str, kind: &str) -> Result<Resource, Error> {
    match context.rest_mapper.find(&context.control_plane, api_version, kind).await {
        Err(Error::UnknownKind { .. }) => {
            Err(Error::Other(format!("no matches for kind {kind:?} in version {api_version:?}")))
        }
        found => found,
    }
}

/// Gets the scale target of a reference.
async fn get_target(
    context: &Context,
    namespace: &str,
    api_version: &str,
    target: &CrossVersionObjectReference,
) -> Result<(Resource, Value), Error> {
    let resource = find_resource(context, api_version, &target.kind).await?;
    // Permission to write autoscalers in a namespace does not include cluster-scoped objects.
    if !resource.namespaced {
        return Err(Error::Other(format!("{} is cluster-scoped and cannot be scaled from a namespace", target.kind)));
    }
    match context.objects.get(Target::new(&resource, namespace, &target.name)).await? {
        Some(object) => Ok((resource, object)),
        None => Err(Error::Other(not_found_message(&resource, &target.name))),
    }
}
