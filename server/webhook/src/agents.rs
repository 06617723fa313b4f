//! Admission of Secrets that members' agents write: an agent may write only the Secrets that hold the tokens of its own
//! cluster.

use axum::response::Response;
use crowsnest_admission::agents::{agent_cluster, check_secret};
use crowsnest_api::cluster::Cluster;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_component_base::client_errors::api_error;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::{allow, parse_user, refuse};
use crowsnest_aggregated::stored::read_stored;
use crowsnest_api::storage::CLUSTERS;
use crowsnest_process::reply::json as reply;

/// Reviews a Secret. The Cluster of the agent is read only if it can change the result.
pub(super) async fn review(control_plane: &kube::Client, request: &Value) -> Result<Response, ApiError> {
    let (user, secret, old_secret) = (parse_user(request), &request["object"], &request["oldObject"]);
    let mut result = check_secret(&user, secret, old_secret, None);
    if let (Err(_), false, Some(cluster_name)) = (&result, old_secret.is_null(), agent_cluster(&user)) {
        let cluster = get_cluster(control_plane, cluster_name).await.map_err(api_error)?;
        result = check_secret(&user, secret, old_secret, cluster.as_ref());
    }
    let review = match result {
        Ok(()) => allow(&request["uid"], None),
        Err(reason) => {
            let name = secret.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            refuse(&request["uid"], &ApiError::forbidden("", "secrets", name, reason).to_status())
        }
    };
    Ok(reply(StatusCode::OK, &review))
}

/// The Cluster of this name, if it is registered.
async fn get_cluster(control_plane: &kube::Client, name: &str) -> Result<Option<Cluster>, kube::Error> {
    let Ok(name) = ClusterName::parse(name) else { return Ok(None) };
    match read_stored(control_plane, &CLUSTERS, &format!("/clusters/{name}")).await {
        Ok(cluster) => Ok(Cluster::deserialize(&cluster).ok()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}
