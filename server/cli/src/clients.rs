//! Clients for members and for the fleet through the control plane's proxies, with the caller's identity, and
//! explanations of failed requests.

use std::error::Error;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use crowsnest_apimachinery::request::path_segment;
pub use crowsnest_component_base::client_errors::describe_cause;
use kube::core::Status;
use serde_json::Value;

use super::object::is_cluster_error;
use crate::verbs::get::OperationScope;

/// A client for one member.
pub(crate) fn member(config: &kube::Config, cluster: &str) -> anyhow::Result<kube::Client> {
    let cluster = path_segment(cluster);
    client_with_base_path(config, &format!("/apis/cluster.karmada.io/v1alpha1/clusters/{cluster}/proxy"))
        .with_context(|| format!("cannot connect to cluster {cluster}"))
}

/// Returns a client for the member `cluster`, or for the control plane.
pub(crate) fn client(
    config: kube::Config,
    cluster: Option<&str>,
    scope: Option<OperationScope>,
) -> anyhow::Result<kube::Client> {
    match (cluster, scope) {
        (Some(_), Some(OperationScope::Karmada)) => bail!("-s karmada selects the control plane; omit --cluster"),
        (None, Some(OperationScope::Members | OperationScope::All)) => {
            bail!("the scope needs a member; name one with --cluster")
        }
        (Some(cluster), _) => member(&config, cluster),
        (None, _) => Ok(kube::Client::try_from(config)?),
    }
}

/// Returns a client for the fleet-wide proxy, which serves all members as one cluster.
pub(crate) fn fleet(config: &kube::Config) -> anyhow::Result<kube::Client> {
    client_with_base_path(config, "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy")
        .context("cannot connect to the fleet-wide proxy")
}

/// Returns a client for the control plane that prefixes the paths of its requests with this path.
fn client_with_base_path(config: &kube::Config, path: &str) -> anyhow::Result<kube::Client> {
    let mut config = config.clone();
    let control_plane_url = config.cluster_url.to_string();
    config.cluster_url = format!("{}{path}", control_plane_url.trim_end_matches('/')).parse()?;
    // The proxy reconnects to members by itself; its 503 for an unreachable member is reported at once, without
    // retries.
    config.default_retry = false;
    Ok(kube::Client::try_from(config)?)
}

/// Requests a path as JSON.
pub async fn get(client: &kube::Client, path: &str) -> Result<Value, kube::Error> {
    let request = http::Request::get(path).header(http::header::ACCEPT, "application/json").body(Vec::new());
    client.request(request.map_err(kube::Error::HttpError)?).await
}

/// Requests a path of the control plane; the error explains the failure and the next step.
pub(crate) async fn get_or_explain(control_plane: &kube::Client, path: &str) -> anyhow::Result<Value> {
    get(control_plane, path).await.map_err(|error| anyhow!("{}", explain_failure(None, &error)))
}

/// Requests an object of a member or of the control plane; `None` if it is not found.
pub(crate) async fn find(client: &kube::Client, cluster: Option<&str>, path: &str) -> anyhow::Result<Option<Value>> {
    match get(client, path).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.code == 404 && !is_cluster_error(&status) => Ok(None),
        Err(error) => Err(anyhow!("{}", explain_failure(cluster, &error))),
    }
}

/// Explains a failed request: cluster, cause and next step. Members are reached through the control plane, so a
/// connection error always concerns the control plane.
pub(crate) fn explain_failure(cluster: Option<&str>, error: &kube::Error) -> String {
    let reason = describe_cause(error);
    let kube::Error::Api(status) = error else {
        return match error {
            kube::Error::Service(_) | kube::Error::HyperError(_) => {
                format!(
                    "cannot connect to the control plane: {reason}; start one with `crowsnest up`, or name another with --kubeconfig"
                )
            }
            _ => reason,
        };
    };
    let reason = match cluster.filter(|cluster| !reason.contains(*cluster)) {
        Some(cluster) => format!("{cluster}: {reason}"),
        None => reason,
    };
    match next_step(cluster, status) {
        Some(next) => format!("{reason}; {next}"),
        None => reason,
    }
}

/// The next step that a user can take after an error status, if one is known.
fn next_step(cluster: Option<&str>, status: &Status) -> Option<String> {
    match (status.code, cluster) {
        (401, _) => Some("check the credentials, or choose others with --kubeconfig or --context".to_owned()),
        (403, _) if is_cluster_error(status) || is_impersonation_denial(status) => Some(
            "the ClusterRole `cluster-proxy-admin` of the control plane grants this permission (docs/AUTHORIZATION.md); \
             `kubectl auth can-i --list` lists your permissions"
                .to_owned(),
        ),
        (403, None) if !is_rbac_denial(status) => None,
        (403, None) => Some("`kubectl auth can-i --list` lists your permissions".to_owned()),
        (403, Some(cluster)) => Some(format!("cluster {cluster} grants permissions by its own RBAC: docs/AUTHORIZATION.md")),
        (404, _) if is_cluster_error(status) => {
            Some("`crowsnest get clusters -s karmada` lists the clusters".to_owned())
        }
        (404, _) => {
            let name = status.details.as_ref().map(|details| details.name.as_str()).filter(|name| !name.is_empty())?;
            Some(format!("`crowsnest search 'name:={name}'` finds the clusters that have it"))
        }
        (502..=504, Some(cluster)) => {
            Some(format!("`crowsnest describe cluster/{cluster} -s karmada` shows its conditions"))
        }
        _ => None,
    }
}

/// True if the member refuses impersonation because no role of the control plane grants it to the caller.
fn is_impersonation_denial(status: &Status) -> bool {
    status.message.contains(":karmada-impersonator\" cannot impersonate")
}

/// True for a denial by the authorizer. Admission, such as deletion protection, also responds with 403.
fn is_rbac_denial(status: &Status) -> bool {
    status.message.contains("User \"") && status.message.contains("\" cannot ")
}

/// Finds the failed request in a chain of causes.
pub(crate) fn find_request_error<'e>(cause: &'e (dyn Error + 'static)) -> Option<&'e kube::Error> {
    cause.downcast_ref::<kube::Error>().or_else(|| cause.downcast_ref::<Arc<kube::Error>>().map(|error| &**error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(code: u16, message: &str, kind: &str) -> kube::Error {
        let status = json!({"status": "Failure", "message": message, "reason": "", "code": code,
            "details": {"group": "cluster.karmada.io", "kind": kind, "name": "m1"}});
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    #[rstest::rstest]
    #[case::refused(
        status(403, "pods is forbidden", ""),
        Some("m1"),
        "m1: pods is forbidden; cluster m1 grants permissions by its own RBAC: docs/AUTHORIZATION.md"
    )]
    #[case::unreachable(
        status(503, "error trying to reach cluster m1: refused", ""),
        Some("m1"),
        "error trying to reach cluster m1: refused; `crowsnest describe cluster/m1 -s karmada` shows its conditions"
    )]
    #[case::no_cluster(
        status(404, "clusters \"m1\" not found", "clusters"),
        Some("m1"),
        "clusters \"m1\" not found; `crowsnest get clusters -s karmada` lists the clusters"
    )]
    #[case::no_pod(
        status(404, "pods \"web\" not found", "pods"),
        None,
        "pods \"web\" not found; `crowsnest search 'name:=m1'` finds the clusters that have it"
    )]
    #[case::without_proxy_permission(
        status(403, "clusters \"m1\" is forbidden", "clusters"),
        Some("m1"),
        "clusters \"m1\" is forbidden; the ClusterRole `cluster-proxy-admin` of the control plane grants this permission (docs/AUTHORIZATION.md); `kubectl auth can-i --list` lists your permissions"
    )]
    #[case::without_impersonation_permission(
        status(
            403,
            "users \"ops\" is forbidden: User \"system:serviceaccount:a:karmada-impersonator\" cannot impersonate resource \"users\"",
            "users"
        ),
        Some("m1"),
        "m1: users \"ops\" is forbidden: User \"system:serviceaccount:a:karmada-impersonator\" cannot impersonate resource \"users\"; the ClusterRole `cluster-proxy-admin` of the control plane grants this permission (docs/AUTHORIZATION.md); `kubectl auth can-i --list` lists your permissions"
    )]
    #[case::forbidden(
        status(
            403,
            "pods is forbidden: User \"ops\" cannot list resource \"pods\" in API group \"\" at the cluster scope",
            "pods"
        ),
        None,
        "pods is forbidden: User \"ops\" cannot list resource \"pods\" in API group \"\" at the cluster scope; `kubectl auth can-i --list` lists your permissions"
    )]
    #[case::denied_by_admission(
        status(403, "admission webhook \"w\" denied the request: This resource is protected", ""),
        None,
        "admission webhook \"w\" denied the request: This resource is protected"
    )]
    #[case::unauthorized(
        status(401, "Unauthorized", ""),
        None,
        "Unauthorized; check the credentials, or choose others with --kubeconfig or --context"
    )]
    fn failures_name_the_cluster_and_the_next_step(
        #[case] error: kube::Error,
        #[case] cluster: Option<&str>,
        #[case] expected: &str,
    ) {
        assert_eq!(explain_failure(cluster, &error), expected);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Layer(#[source] std::io::Error);

    #[test]
    fn connection_errors_show_the_innermost_cause() {
        let refused = Layer(std::io::Error::other("connection refused"));
        let message = explain_failure(Some("m1"), &kube::Error::Service(Box::new(refused)));
        assert!(
            message
                .starts_with("cannot connect to the control plane: connection refused; start one with `crowsnest up`"),
            "{message}"
        );
    }
}
