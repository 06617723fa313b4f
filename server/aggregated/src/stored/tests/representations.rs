//! Responses in the media types that clients accept.

use super::*;
use rstest::rstest;

const YAML: &str = "application/yaml";

#[rstest]
#[case::object("GET", "/clusters/m1", YAML, 200, "kind", "Cluster")]
#[case::list("GET", "/clusters", YAML, 200, "kind", "ClusterList")]
#[case::table("GET", "/clusters", "application/yaml;as=Table;v=v1;g=meta.k8s.io", 200, "kind", "Table")]
#[case::deletion("DELETE", "/clusters/m1", YAML, 200, "kind", "Cluster")]
#[case::error("GET", "/clusters/none", YAML, 404, "message", "clusters.cluster.karmada.io \"none\" not found")]
#[tokio::test]
async fn yaml_has_the_names_of_the_public_group(
    #[case] method: &str,
    #[case] resource_path: &str,
    #[case] accept: &str,
    #[case] code: u16,
    #[case] field: &str,
    #[case] expected: &str,
) {
    let server = start_with_cluster().await;
    let request = Request::builder().method(method).uri(resource_path).header(header::ACCEPT, accept);
    let request = request.body(Body::empty()).unwrap();
    let target = Target { resource_path, query: &Query::default(), status_only: false };
    let response = CLUSTERS.serve(&server.admin(), target, request, None).await.unwrap();
    let media_type = response.headers()[header::CONTENT_TYPE].to_str().unwrap();
    assert_eq!((response.status().as_u16(), media_type), (code, YAML));
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let text = std::str::from_utf8(&text).unwrap();
    assert!(!text.contains(STORAGE_GROUP) && !text.contains("StoredCluster"), "{text}");
    let value: Value = serde_saphyr::from_str(text).unwrap();
    assert_eq!(value[field], expected, "{text}");
    server.stop().await.unwrap();
}

#[rstest]
#[case::protobuf("GET", "application/vnd.kubernetes.protobuf", "")]
#[case::text("POST", "text/plain", "")]
#[case::watch("GET", "application/yaml", "watch=1")]
#[tokio::test]
async fn other_media_types_are_refused(#[case] method: &str, #[case] accept: &str, #[case] query: &str) {
    let server = start_control_plane().await;
    let cluster = json!({"metadata": {"name": "m1"}, "spec": {"syncMode": "Push"}});
    let request =
        Request::builder().method(method).header(header::ACCEPT, accept).body(Body::from(cluster.to_string()));
    let target = Target { resource_path: "/clusters", query: &Query::parse(Some(query)), status_only: false };
    let refused = CLUSTERS.serve(&server.admin(), target, request.unwrap(), None).await.unwrap_err();
    assert_eq!(refused.code, 406, "{}", refused.message);
    server.stop().await.unwrap();
}
