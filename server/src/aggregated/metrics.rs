//! `metrics.k8s.io` and `custom.metrics.k8s.io`: what Karmada's metrics adapter serves. The control plane's RBAC says who may ask
//! (`edge`); members are asked by `crowsnest_proxy` with our own rights there.

pub(super) mod openapi;

use axum::extract::Request;
use axum::response::Response;
use crowsnest_proxy::Metric;
use http::Method;

use super::fleetwide::{incoming, outgoing, running};
use super::reply::Failure;
use super::route::CUSTOM_METRICS;
use crate::roles::Roles;

/// What pods or nodes use.
pub(super) async fn usage(roles: &Roles, path: &str, request: Request) -> Result<Response, Failure> {
    reads(&request)?;
    Ok(incoming(running(roles)?.proxy.usage(path, outgoing(request)).await))
}

/// Values of a metric.
pub(super) async fn values(roles: &Roles, path: &str, request: Request) -> Result<Response, Failure> {
    reads(&request)?;
    Ok(incoming(running(roles)?.proxy.custom_metrics(path, outgoing(request)).await))
}

/// The metrics that members list, for a group's discovery. Before members are known there are none: the group itself is served.
pub(super) async fn listed(roles: &Roles, group: &str) -> Vec<Metric> {
    match roles.get().filter(|_| group == CUSTOM_METRICS) {
        Some(running) => running.proxy.custom_metrics_served().await,
        None => Vec::new(),
    }
}

fn reads(request: &Request) -> Result<(), Failure> {
    if request.method() == Method::GET { Ok(()) } else { Err(Failure::method_not_allowed()) }
}
