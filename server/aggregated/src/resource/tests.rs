//! Routes, the attributes that are authorized with them, and a resource that the tests define.

mod mcp;

use crowsnest_api::aggregated_groups::{ApiGroup, aggregated_groups};
use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use crowsnest_apimachinery::request::{Query, RequestInfo, RequestPath};
use crowsnest_apimachinery::user::{AUTHENTICATED, UserInfo};
use crowsnest_apiserver::audit::{Attributes, Auditor};
use crowsnest_process::client_certificate::{Certificate, Peer};
use crowsnest_process::reload::ReloadCounters;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body as KubeBody;
use rstest::rstest;
use serde_json::json;
use tower::ServiceExt;

use super::registry::{Group, REGISTRY, Registry, Route, VERSION};
use super::*;
use crate::admission::{AdmissionChain, ClusterDns};
use crate::request::authentication::DelegatedAuth;
use crate::request::context::RequestAttributes;
use crate::request::limits::Limits;
use crate::request::middleware::ApiMiddleware;
use crate::server::router;
use crowsnest_process::reply::json as json_response;
use crowsnest_runtime::metrics::ProcessMetrics;

fn attributes(method: &Method, path: &str, query: &str) -> Attributes {
    Attributes::from(RequestInfo::parse(method, path, &Query::parse(Some(query))))
}

/// The route of a path as text; for a resource, the name of its route and the path below the object.
fn route(path: &str) -> String {
    match REGISTRY.route(path) {
        Route::Groups => "/apis".to_owned(),
        Route::Group(group) => group.api.name.to_owned(),
        Route::Resources(group, version) => format!("{}/{version}", group.api.name),
        Route::Resource(found) => {
            let subpath = found.subpath(path);
            let gap = if subpath.is_empty() { "" } else { " " };
            format!("{}{gap}{subpath}", found.resource.definition().route)
        }
        Route::OpenApi => "openapi".to_owned(),
        Route::Health => "health".to_owned(),
        Route::Unknown => String::new(),
    }
}

#[test]
fn paths_have_routes() {
    let clusters = "/apis/cluster.karmada.io/v1alpha1";
    let karmada_search = "/apis/search.karmada.io/v1alpha1";
    let crowsnest_search = "/apis/search.crowsnest.io/v1alpha1";
    let propagation = "/apis/propagation.crowsnest.io/v1alpha1";
    let access = "/apis/access.crowsnest.io/v1alpha1";
    let cases = [
        ("/apis".to_owned(), "/apis"),
        ("/openapi/v3".to_owned(), "openapi"),
        ("/readyz".to_owned(), "health"),
        ("/apis/cluster.karmada.io".into(), "cluster.karmada.io"),
        (clusters.into(), "cluster.karmada.io/v1alpha1"),
        (format!("{clusters}/clusters"), "clusters"),
        (format!("{clusters}/clusters/"), "clusters"),
        (format!("{clusters}/clusters/m1/"), "clusters /"),
        (format!("{clusters}/clusters/m1/status"), "clusters"),
        (format!("{clusters}/clusters/m1/status/x"), ""),
        (format!("{clusters}/clusters/m1/proxy"), "clusters/proxy"),
        (format!("{clusters}/clusters/m1/proxy/api/v1/pods"), "clusters/proxy /api/v1/pods"),
        (format!("{clusters}/clusters/*/proxy/api"), "clusters/proxy /api"),
        (format!("{clusters}/clusters/m1/attach"), "clusters/attach"),
        (format!("{clusters}/clusters/m1/attach/more"), ""),
        (format!("{clusters}/clusters//attach"), ""),
        (format!("{clusters}/clusters/m1/other"), ""),
        // Attributes are derived from the same segments: an empty one would shift them.
        (format!("{clusters}/clusters/m1//proxy/api"), ""),
        (format!("{clusters}/clusters//m1/proxy/api"), ""),
        (format!("{karmada_search}/proxying/karmada//proxy/api"), ""),
        (format!("{karmada_search}/search//cache/api/v1/pods"), ""),
        // A percent-encoded resource is not found.
        (format!("{clusters}/%63lusters/m1"), ""),
        (format!("{clusters}/clusters/m1/%70roxy/api"), ""),
        (format!("{karmada_search}/search/%63ache/api/v1/pods"), ""),
        (format!("{clusters}/watch/clusters"), ""),
        (format!("{clusters}/namespaces/a/clusters/m1"), ""),
        (format!("{clusters}/nodes"), ""),
        (format!("{karmada_search}/resourceregistries/r"), "resourceregistries"),
        (format!("{karmada_search}/search/cache/api/v1/pods"), "search/cache /api/v1/pods"),
        (format!("{karmada_search}/search/opensearch/api/v1/pods"), "search/opensearch /api/v1/pods"),
        (format!("{karmada_search}/search/elsewhere/api/v1/pods"), ""),
        (format!("{karmada_search}/search"), ""),
        (format!("{karmada_search}/proxying/karmada"), ""),
        (format!("{karmada_search}/proxying/karmada/proxy/api/v1/pods"), "proxying/proxy /api/v1/pods"),
        (format!("{crowsnest_search}/query"), "search.crowsnest.io/query"),
        (format!("{crowsnest_search}/query/"), ""),
        (format!("{crowsnest_search}/query/x"), ""),
        (format!("{crowsnest_search}/logs"), "search.crowsnest.io/logs"),
        (format!("{crowsnest_search}/count"), "search.crowsnest.io"),
        (format!("{crowsnest_search}/mcp"), "search.crowsnest.io"),
        (format!("{crowsnest_search}/mcp/x"), ""),
        (format!("{crowsnest_search}/savedsearches"), "savedsearches"),
        (format!("{crowsnest_search}/savedsearches/mine"), "savedsearches"),
        (format!("{crowsnest_search}/savedsearches/mine/x"), ""),
        (format!("{propagation}/plans"), "plans"),
        (format!("{propagation}/namespaces/shop/explanations/deployments.apps:web"), "explanations"),
        (format!("{propagation}/clusterexplanations/namespaces:a"), "explanations"),
        (format!("{propagation}/namespaces/shop/explanations"), ""),
        (format!("{propagation}/namespaces//explanations/x"), ""),
        (format!("{propagation}/explanations/x"), ""),
        (format!("{propagation}/plans/x"), ""),
        (format!("{access}/resourceaccessreviews"), "resourceaccessreviews"),
        (format!("{access}/subjectrulesreviews"), "subjectrulesreviews"),
        (format!("{access}/subjectrulesreviews/x"), ""),
        ("/apis/other.io/v1".into(), ""),
        ("/version".into(), ""),
    ];
    for (path, expected) in &cases {
        assert_eq!(&route(path), expected, "{path}");
    }
}

#[rstest]
#[case("metrics.k8s.io/v1beta1/pods", "metrics.k8s.io", "list metrics.k8s.io pods")]
#[case("metrics.k8s.io/v1beta1/nodes/n", "metrics.k8s.io", "get metrics.k8s.io nodes n")]
#[case("metrics.k8s.io/v1beta1/namespaces/a/pods", "metrics.k8s.io", "list metrics.k8s.io pods a")]
#[case("metrics.k8s.io/v1beta1/namespaces/a/pods/p", "metrics.k8s.io", "get metrics.k8s.io pods a p")]
#[case("metrics.k8s.io/v1beta1/pods/p", "", "")]
#[case("metrics.k8s.io/v1beta1/namespaces/a/pods/p/log", "", "")]
#[case("metrics.k8s.io/v1beta1/namespaces/a/nodes", "", "")]
#[case("metrics.k8s.io/v1/pods", "", "")]
#[case(
    "custom.metrics.k8s.io/v1beta2/namespaces/a/pods/%2A/qps",
    "custom.metrics.k8s.io",
    "get custom.metrics.k8s.io pods/qps a *"
)]
#[case(
    "custom.metrics.k8s.io/v1beta1/namespaces/a/deployments.apps/web/qps",
    "custom.metrics.k8s.io",
    "get custom.metrics.k8s.io deployments.apps/qps a web"
)]
#[case(
    "custom.metrics.k8s.io/v1beta1/namespaces/a/metrics/qps",
    "custom.metrics.k8s.io",
    "get custom.metrics.k8s.io metrics a qps"
)]
#[case("custom.metrics.k8s.io/v1beta1/nodes/n/load", "custom.metrics.k8s.io", "get custom.metrics.k8s.io nodes/load n")]
#[case::a_verb_in_the_path("custom.metrics.k8s.io/v1beta1/%70roxy/n/load", "", "")]
#[case("custom.metrics.k8s.io/v1beta1/namespaces/a/pods/..%2Fsecrets/qps", "", "")]
#[case("custom.metrics.k8s.io/v1beta1/namespaces/a/qps", "", "")]
#[case("custom.metrics.k8s.io/v1beta1/namespaces/a/status/x/qps", "", "")]
#[case("custom.metrics.k8s.io/v1beta1/nodes/n/load/more", "", "")]
fn paths_of_metrics_have_routes_and_attributes(#[case] path: &str, #[case] expected: &str, #[case] authorized: &str) {
    let path = format!("/apis/{path}");
    assert_eq!(route(&path), expected);
    if !authorized.is_empty() {
        let Attributes { verb, group, resource, subresource, namespace, name, .. } =
            attributes(&Method::GET, &path, "");
        let resource = if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") };
        let words = [verb, group, resource, namespace, name].into_iter().filter(|word| !word.is_empty());
        assert_eq!(words.collect::<Vec<_>>().join(" "), authorized);
    }
}

#[rstest]
#[case::out_of_the_namespace("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/..%2F..%2Fsecrets")]
#[case("/apis/metrics.k8s.io/v1beta1/namespaces/../pods")]
#[case("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods//")]
fn ambiguous_paths_of_metrics_are_refused(#[case] path: &str) {
    let attributes = RequestAttributes::parse(&REGISTRY, &Method::GET, &path.parse().unwrap(), &HeaderMap::new());
    assert!(attributes.path_error.is_some());
}

#[test]
fn attributes_are_those_that_kube_apiserver_derives() {
    let path = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/pods";
    let proxy = attributes(&Method::GET, path, "watch=true");
    assert_eq!((proxy.verb.as_str(), proxy.subresource.as_str(), proxy.name.as_str()), ("get", "proxy", "m1"));
    let attach = attributes(&Method::POST, "/apis/cluster.karmada.io/v1alpha1/clusters/m1/attach", "");
    assert_eq!((attach.verb.as_str(), attach.subresource.as_str(), attach.name.as_str()), ("create", "attach", "m1"));
    let watch = attributes(&Method::GET, "/apis/cluster.karmada.io/v1alpha1/clusters", "watch=true");
    assert_eq!((watch.verb.as_str(), watch.resource.as_str()), ("watch", "clusters"));
    let path = "/apis/propagation.crowsnest.io/v1alpha1/namespaces/shop/explanations/deployments.apps:web";
    let explanation = attributes(&Method::GET, path, "");
    assert_eq!((explanation.verb.as_str(), explanation.resource.as_str()), ("get", "explanations"), "{explanation:?}");
    assert_eq!((explanation.namespace.as_str(), explanation.name.as_str()), ("shop", "deployments.apps:web"));
    assert_eq!(attributes(&Method::GET, "/apis", "").path.as_deref(), Some("/apis"));
}

proptest::proptest! {
    /// A path that is not refused leads to the resource whose attributes are authorized.
    #[test]
    fn routes_and_attributes_agree(
        group in "(cluster\\.karmada\\.io|search\\.karmada\\.io|search\\.crowsnest\\.io|propagation\\.crowsnest\\.io)",
        resource_path in "(/(clusters|status|proxy|attach|watch|namespaces|search|cache|proxying|query|plans|explanations|%70roxy|x|)){0,6}",
    ) {
        let path = format!("/apis/{group}/{VERSION}{resource_path}");
        let refused = RequestPath::parse(&path).is_err();
        if let (Route::Resource(found), false) = (REGISTRY.route(&path), refused) {
            let info = RequestInfo::parse(&Method::GET, &path, &Query::default());
            proptest::prop_assert!(found.agrees_with(&info), "{found:?} {info:?}");
        }
    }
}

/// A minimal resource. An entry in the list of a group is sufficient to serve it.
struct Widgets;

impl Resource for Widgets {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = Definition {
            namespaced: true,
            ..Definition::new("widgets", "Widget", &["create", "get", "list"], Paths::CollectionAndObject)
        };
        &DEFINITION
    }

    fn describe(&self, version: &str, document: &mut Document) {
        document
            .add_path(format!("/apis/example.io/{version}/widgets"), json!({"get": {"operationId": "listWidgets"}}));
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move {
            let served = format!("{} {}/{}", call.context.user.name, call.context.namespace(), call.context.name());
            Ok(json_response(StatusCode::OK, &json!({"served": served})))
        })
    }
}

const RESOURCES: &[&dyn Resource] = &[&Widgets];
const EXAMPLE_API: ApiGroup = ApiGroup::new("example.io");
static EXAMPLE: Registry = Registry { groups: &[Group::new(&EXAMPLE_API, RESOURCES)] };

type Reviews = Arc<Mutex<Vec<Value>>>;

/// A control plane that allows everything, and keeps the attributes that it reviews.
fn control_plane(reviews: &Reviews) -> kube::Client {
    let reviews = Arc::clone(reviews);
    let service = tower::service_fn(move |request: http::Request<KubeBody>| {
        let reviews = Arc::clone(&reviews);
        async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await?.to_bytes();
            let response_body = match path.as_str() {
                "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                    let mut review: Value = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
                    reviews.lock().unwrap().push(review["spec"]["resourceAttributes"].clone());
                    review["status"] = json!({"allowed": true});
                    review
                }
                _ => json!({"paths": {}, "components": {"schemas": {}}}),
            };
            Ok::<_, kube::Error>(http::Response::new(KubeBody::from(response_body.to_string().into_bytes())))
        }
    });
    kube::Client::new(service, "default")
}

/// A server with these groups, and without limits.
fn aggregated(registry: &'static Registry, control_plane: kube::Client) -> AggregatedServer {
    let middleware = ApiMiddleware {
        auditor: Auditor::default(),
        limits: Limits::new(0, 0),
        reloads: Arc::new(ReloadCounters::default()),
        metrics: Arc::new(ProcessMetrics::new()),
        timeout: Duration::from_secs(60),
    };
    AggregatedServer {
        registry,
        control_plane: control_plane.clone(),
        admission: Arc::new(AdmissionChain::new(
            control_plane.clone(),
            DelegatedAuth::new(control_plane.clone()),
            Arc::new(ClusterDns),
        )),
        delegated: DelegatedAuth::new(control_plane),
        roles: Arc::default(),
        middleware,
        metrics_adapter: false,
    }
}

fn alice() -> Peer {
    Peer { certificate: Certificate::User(UserInfo::new("alice", [AUTHENTICATED])), ..Peer::default() }
}

/// The response to a request of Alice, and the attributes that were reviewed for it.
async fn send(method: &str, uri: &str) -> (StatusCode, Value, Vec<Value>) {
    let reviews = Reviews::default();
    let server = aggregated(&EXAMPLE, control_plane(&reviews));
    let request = Request::builder().method(method).uri(uri).extension(alice()).body(Body::empty()).unwrap();
    let response = router(server).oneshot(request).await.unwrap();
    let status = response.status();
    let body = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
    let reviews = reviews.lock().unwrap().clone();
    (status, body, reviews)
}

#[rstest]
#[case::object("GET", "/namespaces/a/widgets/w", "get", 200, "alice a/w")]
#[case::escaped("GET", "/namespaces/a/widgets/%77", "get", 200, "alice a/w")]
#[case::all_namespaces("GET", "/widgets?fieldSelector=metadata.name%3Dw", "list", 200, "alice /")]
#[case::create("POST", "/namespaces/a/widgets", "create", 200, "alice a/")]
#[case::other_method("DELETE", "/namespaces/a/widgets/w", "delete", 405, "")]
#[case::other_resource("GET", "/namespaces/a/gadgets/w", "get", 404, "")]
#[case::no_namespace("GET", "/widgets/w", "get", 404, "")]
#[tokio::test]
async fn a_new_resource_is_authorized_and_served(
    #[case] method: &str,
    #[case] resource_path: &str,
    #[case] verb: &str,
    #[case] code: u16,
    #[case] served: &str,
) {
    let (status, body, reviews) = send(method, &format!("/apis/example.io/{VERSION}{resource_path}")).await;
    assert_eq!((status.as_u16(), body["served"].as_str().unwrap_or_default()), (code, served), "{body}");
    let [review] = reviews.as_slice() else { panic!("{reviews:?}") };
    assert_eq!((review["verb"].as_str(), review["group"].as_str()), (Some(verb), Some("example.io")), "{review}");
    if code != 404 {
        assert_eq!(review["resource"], "widgets");
        let path = [review["namespace"].as_str(), review["name"].as_str()].map(Option::unwrap_or_default).join("/");
        assert!(served.is_empty() || served == format!("alice {path}"), "{review}");
    }
}

#[tokio::test]
async fn a_new_resource_is_discovered_and_described() {
    let (_, listed, reviews) = send("GET", &format!("/apis/example.io/{VERSION}")).await;
    assert_eq!(
        listed["resources"],
        json!([{"name": "widgets", "singularName": "", "namespaced": true, "kind": "Widget",
            "verbs": ["create", "get", "list"]}])
    );
    assert_eq!(reviews, Vec::<Value>::new(), "discovery is allowed to all authenticated users");
    let (_, groups, _) = send("GET", "/apis").await;
    assert_eq!(groups["groups"][0]["name"], "example.io");
    let (_, document, _) = send("GET", &format!("/openapi/v3/apis/example.io/{VERSION}")).await;
    assert_eq!(document["paths"]["/apis/example.io/v1alpha1/widgets"]["get"]["operationId"], "listWidgets");
    let (status, _, _) = send("GET", "/apis/cluster.karmada.io").await;
    assert_eq!(status, StatusCode::NOT_FOUND, "the registry of the test has one group");
}

#[test]
fn metrics_are_served_on_request() {
    let names = |metrics| REGISTRY.groups(metrics).map(|group| group.api.name).collect::<Vec<_>>();
    assert!(!names(false).contains(&"metrics.k8s.io") && names(true).contains(&"custom.metrics.k8s.io"));
    let listed = discovery::group_list(&REGISTRY, true);
    assert_eq!(listed["groups"].as_array().map(Vec::len), Some(names(false).len() + 2));
    let custom = REGISTRY.groups(true).find(|group| group.api.name == "custom.metrics.k8s.io").unwrap();
    assert_eq!(discovery::group(custom)["preferredVersion"]["version"], "v1beta2");
}

#[test]
fn registrations_match_the_registry() {
    for metrics in [false, true] {
        let served: Vec<&ApiGroup> = REGISTRY.groups(metrics).map(|group| group.api).collect();
        assert_eq!(served, aggregated_groups(metrics).collect::<Vec<_>>());
    }
    for group in REGISTRY.groups {
        let has_resources = group.resources.iter().any(|resource| !resource.definition().resource.is_empty());
        assert_eq!(group.api.has_resources, has_resources, "{}", group.api.name);
    }
}
