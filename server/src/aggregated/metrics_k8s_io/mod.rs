//! `metrics.k8s.io` and `custom.metrics.k8s.io`: what Karmada's metrics adapter serves. The control plane's RBAC says who may ask
//! (`edge`); members are asked by `crowsnest_proxy` with our own rights there.

pub(crate) mod openapi;

use axum::extract::Request;
use axum::response::Response;
use crowsnest_proxy::Metric;
use http::Method;

use crate::aggregated::reply::Failure;
use crate::aggregated::resource::registry::CUSTOM_METRICS;
use crate::aggregated::search_karmada_io::proxying::{incoming, outgoing, running};
use crate::roles::Roles;

/// What pods or nodes use.
pub(crate) async fn usage(roles: &Roles, path: &str, request: Request) -> Result<Response, Failure> {
    reads(&request)?;
    Ok(incoming(running(roles)?.proxy.usage(path, outgoing(request)).await))
}

/// Values of a metric.
pub(crate) async fn values(roles: &Roles, path: &str, request: Request) -> Result<Response, Failure> {
    reads(&request)?;
    Ok(incoming(running(roles)?.proxy.custom_metrics(path, outgoing(request)).await))
}

/// The metrics that members list, for a group's discovery. Before members are known there are none: the group itself is served.
pub(crate) async fn listed(roles: &Roles, group: &str) -> Vec<Metric> {
    match roles.get().filter(|_| group == CUSTOM_METRICS) {
        Some(running) => running.proxy.custom_metrics_served().await,
        None => Vec::new(),
    }
}

fn reads(request: &Request) -> Result<(), Failure> {
    if request.method() == Method::GET { Ok(()) } else { Err(Failure::method_not_allowed()) }
}
