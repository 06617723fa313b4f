//! `clusters/<name>/attach`: an agent's connection becomes the tunnel through which its cluster is reached.

use axum::response::Response;
use crowsnest_api::cluster::{Cluster, ClusterSyncMode};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_component_base::client_errors::api_error;
use crowsnest_members::tunnel::PROTOCOL;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use kube::Api;

use super::NAME;
use crate::resource::{CREATE, Call, Connect, Definition, Paths, RequestFeatures, Resource};
use crowsnest_agent::agent::replicas::Replica;
use crowsnest_process::reply::Body;

pub(super) struct AttachResource;

impl Resource for AttachResource {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = Definition {
            subresource: "attach",
            route: "clusters/attach",
            connect: Some(Connect::NoOptions),
            ..Definition::new("clusters", "Cluster", CREATE, Paths::Object)
        };
        &DEFINITION
    }

    fn is_long_running(&self, requested: RequestFeatures) -> bool {
        requested.upgrade
    }

    /// 101, after which the connection is a tunnel, or 204 if the agent has a tunnel to this replica.
    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move {
            let Call { server, context, mut request } = call;
            let cluster = context.name();
            let fleet = &server.running()?.fleet;
            let (replica, mut response) = (Replica::this_process(), Response::new(Body::empty()));
            replica.write_header(response.headers_mut());
            // Agents poll every few seconds and name the replicas to which they have tunnels. Such a tunnel may have
            // ended in this replica, because the connection broke or the Cluster was deleted, so it must also be open
            // here.
            let is_open = cluster.parse().is_ok_and(|name: ClusterName| fleet.tunnels().is_open(&name));
            if replica.has_tunnel(request.headers()) && is_open {
                *response.status_mut() = StatusCode::NO_CONTENT;
                return Ok(response);
            }
            let name = find_pull_mode_cluster(&fleet.control_plane(), cluster).await?;
            if !is_tunnel_request(request.headers()) {
                let text = format!(
                    "cannot open a tunnel: the request needs the headers Connection: Upgrade and Upgrade: {PROTOCOL}"
                );
                return Err(ApiError::bad_request(text));
            }
            let address = context.peer.address.map(tracing::field::display);
            tracing::info!(cluster = %name, user = context.user.name, address, "accepted the tunnel of an agent");
            fleet.tunnels().add(name, hyper::upgrade::on(&mut request));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
            Ok(response)
        })
    }
}

/// The registered cluster; fails unless its mode is Pull. Reads the control plane, because the fleet's watch may not
/// have received a cluster that an agent has just registered.
async fn find_pull_mode_cluster(control_plane: &kube::Client, cluster: &str) -> Result<ClusterName, ApiError> {
    let missing = || {
        let text = format!("clusters.cluster.karmada.io {cluster:?} not found");
        ApiError::new(Reason::NotFound, text).with_object(NAME, "clusters", cluster)
    };
    let name: ClusterName = cluster.parse().map_err(|_| missing())?;
    let clusters: Api<Cluster> = Api::all(control_plane.clone());
    let found = clusters.get_opt(name.as_str()).await.map_err(api_error)?.ok_or_else(missing)?;
    if found.spec.sync_mode != ClusterSyncMode::Pull {
        let text = format!("cluster {name} is registered in {} mode, so it has no tunnel", found.spec.sync_mode);
        let failure = ApiError::new(Reason::Conflict, text);
        return Err(failure.with_object(NAME, "clusters", name.as_str()));
    }
    Ok(name)
}

fn is_tunnel_request(headers: &HeaderMap) -> bool {
    let words = |name| {
        let values = headers.get_all(name).iter().filter_map(|value: &HeaderValue| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(str::trim)
    };
    words(header::CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade"))
        && words(header::UPGRADE).any(|word| word.eq_ignore_ascii_case(PROTOCOL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::sent_by_the_agent("Upgrade", PROTOCOL, true)]
    #[case::rewritten_by_a_proxy("keep-alive, upgrade", "CROWSNEST-TUNNEL/1", true)]
    #[case::one_of_several("Upgrade", "crowsnest-tunnel/2, crowsnest-tunnel/1", true)]
    #[case::a_later_version_alone("Upgrade", "crowsnest-tunnel/2", false)]
    #[case::not_for_this_hop("keep-alive", PROTOCOL, false)]
    #[case::another_protocol("Upgrade", "websocket", false)]
    fn tunnel_requests_are_recognized(#[case] connection: &str, #[case] upgrade: &str, #[case] expected: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, connection.parse().unwrap());
        headers.insert(header::UPGRADE, upgrade.parse().unwrap());
        assert_eq!(is_tunnel_request(&headers), expected);
        assert!(!is_tunnel_request(&HeaderMap::new()));
    }
}
