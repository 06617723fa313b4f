//! Client of the controllers for the control plane. Requests for aggregated kinds go directly to the stored kinds
//! instead of through the aggregation layer back to this server, so that a process can start while no replica is ready.

use axum::body::Body;
use crowsnest_apimachinery::request::{Query, is_identity_header};
use crowsnest_process::reply::StatusResponse;
use http::Request;
use kube::client::Body as KubeBody;

use crowsnest_aggregated::resource::registry::REGISTRY;
use crowsnest_aggregated::stored::Target;

/// Wraps a client of the control plane.
pub(super) fn client(control_plane: &kube::Client) -> kube::Client {
    let namespace = control_plane.default_namespace().to_owned();
    let control_plane = control_plane.clone();
    let service = tower::service_fn(move |request: Request<KubeBody>| {
        let control_plane = control_plane.clone();
        async move {
            // Requests on behalf of a caller use the aggregation layer, which authorizes the caller.
            let is_for_caller = request.headers().keys().any(is_identity_header);
            let (path, query) = (request.uri().path().to_owned(), Query::parse(request.uri().query()));
            let route = REGISTRY.route(&path);
            let stored_route = route.resource_route().filter(|_| !is_for_caller);
            let Some((group, stored_route)) =
                stored_route.and_then(|stored_route| Some((stored_route.resource.stored_group()?, stored_route)))
            else {
                return Ok(control_plane.send(request).await?.map(Body::new));
            };
            let target = Target { resource_path: stored_route.resource_path(&path), query: &query, status_only: false };
            let response = group.serve(&control_plane, target, request.map(Body::new), None).await;
            Ok::<_, kube::Error>(response.unwrap_or_else(|failure| failure.into_response()))
        }
    });
    kube::Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use rstest::rstest;
    use serde_json::{Value, json};

    /// A client that responds with the requested path as an object's name.
    fn echo_client() -> kube::Client {
        let service = tower::service_fn(|request: Request<KubeBody>| async move {
            let path = request.uri().path().to_owned();
            let object = json!({"apiVersion": "storage.crowsnest.io/v1alpha1", "kind": "StoredCluster", "metadata": {"name": path}});
            let body = KubeBody::from(object.to_string().into_bytes());
            let response = Response::builder().header("content-type", "application/json").body(body);
            response.map_err(kube::Error::HttpError)
        });
        kube::Client::new(service, "default")
    }

    #[rstest]
    #[case("/apis/cluster.karmada.io/v1alpha1/clusters/m1", "/apis/storage.crowsnest.io/v1alpha1/storedclusters/m1")]
    #[case(
        "/apis/search.karmada.io/v1alpha1/resourceregistries/r",
        "/apis/storage.crowsnest.io/v1alpha1/storedresourceregistries/r"
    )]
    #[case("/api/v1/namespaces/a", "/api/v1/namespaces/a")]
    #[case(
        "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api",
        "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api"
    )]
    #[tokio::test]
    async fn aggregated_kinds_are_read_from_storage(#[case] path: &str, #[case] expected_path: &str) {
        let impersonated = Request::get(path).header("impersonate-user", "mallory").body(Vec::new()).unwrap();
        let response: Value = client(&echo_client()).request(impersonated).await.unwrap();
        assert_eq!(response["metadata"]["name"], path, "a request on behalf of a caller uses the aggregation layer");
        let response: Value =
            client(&echo_client()).request(Request::get(path).body(Vec::new()).unwrap()).await.unwrap();
        assert_eq!(response["metadata"]["name"], expected_path);
        let version =
            if path == expected_path { "storage.crowsnest.io/v1alpha1" } else { path.split('/').nth(2).unwrap() };
        assert!(response["apiVersion"].as_str().unwrap().starts_with(version), "{response}");
    }
}
