//! `propagation.crowsnest.io/v1alpha1`: explanations of why an object is in its clusters, and predictions of the
//! effect of a change. `crowsnest_controllers::reports` computes them for each request; nothing is written.
//!
//! Callers see only objects they may get in the control plane: a template and its binding, and the objects they
//! propose. docs/EXPLAIN.md describes input and output.

mod explanations;
mod openapi;
mod permissions;
mod plans;

use crowsnest_api::aggregated_groups;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_controllers::reports::Reports;

use crate::resource::Resource;
use crate::resource::registry::Group;
use crate::server::AggregatedServer;

pub const NAME: &str = aggregated_groups::CROWSNEST_PROPAGATION.name;
const API_VERSION: &str = "propagation.crowsnest.io/v1alpha1";

/// Resources of the group. Reports are computed on request, so none of them supports `list`.
const RESOURCES: &[&dyn Resource] = &[&explanations::CLUSTER_SCOPED, &explanations::NAMESPACED, &plans::PLANS];

pub const GROUP: Group =
    Group { schemas: openapi::schemas, ..Group::new(&aggregated_groups::CROWSNEST_PROPAGATION, RESOURCES) };

fn reports(server: &AggregatedServer) -> Result<Reports, ApiError> {
    server.running()?.reports().map_err(ApiError::unavailable)
}
