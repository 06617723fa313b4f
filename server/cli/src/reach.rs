//! Members and the fleet through the control plane's address, as the caller.

use std::error::Error;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use crowsnest_apimachinery::request::path_segment;
pub use crowsnest_component_base::client_errors::reason as said;
use kube::core::Status;
use serde_json::Value;

use super::object::is_of_a_cluster;
use crate::verbs::get::OperationScope;

/// A client for one member.
pub(crate) fn member(config: &kube::Config, cluster: &str) -> anyhow::Result<kube::Client> {
    let cluster = path_segment(cluster);
    below(config, &format!("/apis/cluster.karmada.io/v1alpha1/clusters/{cluster}/proxy"))
        .with_context(|| format!("reaching cluster {cluster}"))
}

/// A client for the one that is meant: the control plane, or with a cluster that.
pub(crate) fn one(
    config: kube::Config,
    cluster: Option<&str>,
    scope: Option<OperationScope>,
) -> anyhow::Result<kube::Client> {
    match (cluster, scope) {
        (Some(_), Some(OperationScope::Karmada)) => bail!("-s karmada asks the control plane: leave --cluster away"),
        (None, Some(OperationScope::Members | OperationScope::All)) => bail!("say which member with --cluster"),
        (Some(cluster), _) => member(&config, cluster),
        (None, _) => Ok(kube::Client::try_from(config)?),
    }
}

/// A client for all members as if they were one cluster.
pub(crate) fn fleet(config: &kube::Config) -> anyhow::Result<kube::Client> {
    below(config, "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy").context("reaching the fleet")
}

fn below(config: &kube::Config, path: &str) -> anyhow::Result<kube::Client> {
    let mut config = config.clone();
    let control_plane = config.cluster_url.to_string();
    config.cluster_url = format!("{}{path}", control_plane.trim_end_matches('/')).parse()?;
    // A member that does not answer is a 503 of the proxy, which knows when to ask again: it is told at once.
    config.default_retry = false;
    Ok(kube::Client::try_from(config)?)
}

/// What is served there, as an API server has it.
pub async fn get(client: &kube::Client, path: &str) -> Result<Value, kube::Error> {
    let request = http::Request::get(path).header(http::header::ACCEPT, "application/json").body(Vec::new());
    client.request(request.map_err(kube::Error::HttpError)?).await
}

/// The same, from the control plane: its failure is told in whole.
pub(crate) async fn ask(control_plane: &kube::Client, path: &str) -> anyhow::Result<Value> {
    get(control_plane, path).await.map_err(|error| anyhow!("{}", failure(None, &error)))
}

/// The same, of a cluster or of the control plane; none where it has none.
pub(crate) async fn find(client: &kube::Client, cluster: Option<&str>, path: &str) -> anyhow::Result<Option<Value>> {
    match get(client, path).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.code == 404 && !is_of_a_cluster(&status) => Ok(None),
        Err(error) => Err(anyhow!("{}", failure(cluster, &error))),
    }
}

/// Who failed, why, and what to do next. A member is reached through the control plane: who does not answer at all is that.
pub(crate) fn failure(cluster: Option<&str>, error: &kube::Error) -> String {
    let said = said(error);
    let kube::Error::Api(status) = error else {
        return match error {
            kube::Error::Service(_) | kube::Error::HyperError(_) => {
                format!(
                    "the control plane does not answer: {said}; `crowsnest up` starts one, --kubeconfig names another"
                )
            }
            _ => said,
        };
    };
    let said = match cluster.filter(|cluster| !said.contains(*cluster)) {
        Some(cluster) => format!("{cluster}: {said}"),
        None => said,
    };
    match next(cluster, status) {
        Some(next) => format!("{said}; {next}"),
        None => said,
    }
}

fn next(cluster: Option<&str>, status: &Status) -> Option<String> {
    match (status.code, cluster) {
        (401, _) => Some("--kubeconfig or --context names who else you are".to_owned()),
        (403, _) if is_of_a_cluster(status) || is_of_impersonation(status) => Some(
            "the ClusterRole `cluster-proxy-admin` of the control plane grants this right (docs/RIGHTS.md); \
             `kubectl auth can-i --list` lists your rights"
                .to_owned(),
        ),
        (403, None) => Some("`kubectl auth can-i --list` lists your rights".to_owned()),
        (403, Some(cluster)) => Some(format!("who may what in {cluster} is up to its own roles: docs/RIGHTS.md")),
        (404, _) if is_of_a_cluster(status) => {
            Some("`crowsnest get clusters -s karmada` lists those there are".to_owned())
        }
        (404, _) => {
            let name = status.details.as_ref().map(|details| details.name.as_str()).filter(|name| !name.is_empty())?;
            Some(format!("`crowsnest search 'name:={name}'` tells who has it"))
        }
        (502..=504, Some(cluster)) => {
            Some(format!("`crowsnest describe cluster/{cluster} -s karmada` tells how it is"))
        }
        _ => None,
    }
}

/// The member does not let the control plane's account act as the caller, because no role of the control plane grants it.
fn is_of_impersonation(status: &Status) -> bool {
    status.message.contains(":karmada-impersonator\" cannot impersonate resource ")
}

/// A request's error somewhere in an error's causes.
pub(crate) fn of_a_request<'e>(cause: &'e (dyn Error + 'static)) -> Option<&'e kube::Error> {
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
        "m1: pods is forbidden; who may what in m1 is up to its own roles: docs/RIGHTS.md"
    )]
    #[case::gone(
        status(503, "error trying to reach cluster m1: refused", ""),
        Some("m1"),
        "error trying to reach cluster m1: refused; `crowsnest describe cluster/m1 -s karmada` tells how it is"
    )]
    #[case::no_cluster(
        status(404, "clusters \"m1\" not found", "clusters"),
        Some("m1"),
        "clusters \"m1\" not found; `crowsnest get clusters -s karmada` lists those there are"
    )]
    #[case::no_pod(
        status(404, "pods \"web\" not found", "pods"),
        None,
        "pods \"web\" not found; `crowsnest search 'name:=m1'` tells who has it"
    )]
    #[case::nobody_of_members(
        status(403, "clusters \"m1\" is forbidden", "clusters"),
        Some("m1"),
        "clusters \"m1\" is forbidden; the ClusterRole `cluster-proxy-admin` of the control plane grants this right (docs/RIGHTS.md); `kubectl auth can-i --list` lists your rights"
    )]
    #[case::nobody_by_impersonation(
        status(
            403,
            "users \"ops\" is forbidden: User \"system:serviceaccount:a:karmada-impersonator\" cannot impersonate resource \"users\"",
            "users"
        ),
        Some("m1"),
        "m1: users \"ops\" is forbidden: User \"system:serviceaccount:a:karmada-impersonator\" cannot impersonate resource \"users\"; the ClusterRole `cluster-proxy-admin` of the control plane grants this right (docs/RIGHTS.md); `kubectl auth can-i --list` lists your rights"
    )]
    #[case::nobody(
        status(401, "Unauthorized", ""),
        None,
        "Unauthorized; --kubeconfig or --context names who else you are"
    )]
    fn failures_name_who_and_what_next(
        #[case] error: kube::Error,
        #[case] cluster: Option<&str>,
        #[case] expected: &str,
    ) {
        assert_eq!(failure(cluster, &error), expected);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Layer(#[source] std::io::Error);

    #[test]
    fn what_broke_is_told_without_its_layers() {
        let refused = Layer(std::io::Error::other("connection refused"));
        let told = failure(Some("m1"), &kube::Error::Service(Box::new(refused)));
        assert!(told.starts_with("the control plane does not answer: connection refused; `crowsnest up`"), "{told}");
    }
}
