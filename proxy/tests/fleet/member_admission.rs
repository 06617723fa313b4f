//! Admission of requests to one member whose name is not part of the request.

use std::sync::{Arc, Mutex};

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_proxy::MemberAdmission;
use futures::future::BoxFuture;
use http::Method;
use serde_json::json;

use crate::test_env::{CONFIG_MAPS, admin, read, request, test_env};

/// Refuses requests to m1, and records the members for which it is called.
#[derive(Default)]
struct RefuseM1(Mutex<Vec<String>>);

impl MemberAdmission for RefuseM1 {
    fn admit<'a>(&'a self, cluster: &'a ClusterName) -> BoxFuture<'a, Result<(), ApiError>> {
        self.0.lock().unwrap().push(cluster.to_string());
        Box::pin(async move {
            match cluster.as_str() {
                "m1" => Err(ApiError::forbidden("cluster.karmada.io", "clusters", "m1", "not m1")),
                _ => Ok(()),
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_concern_one_member_are_admitted_for_it() {
    let env = test_env().await;
    let (first, second, none) = ("/only-m1", "/only-m2", "/none");
    let cases: [(bool, Method, &str, &str, u16, &[&str]); 12] = [
        (true, Method::GET, first, "", 403, &["m1"]),
        (true, Method::DELETE, first, "", 403, &["m1"]),
        (true, Method::PATCH, first, "", 403, &["m1"]),
        (true, Method::GET, second, "", 200, &["m2"]),
        (true, Method::GET, none, "", 404, &[]),
        (true, Method::GET, "", "", 200, &[]),
        (false, Method::GET, "", "cluster=m1", 403, &["m1"]),
        (false, Method::GET, "", "cluster=m2", 200, &["m2"]),
        (false, Method::GET, second, "cluster=m2", 200, &["m2"]),
        (false, Method::GET, first, "", 403, &["m1"]),
        (false, Method::DELETE, first, "", 403, &["m1"]),
        (false, Method::GET, "", "", 200, &[]),
    ];
    for (all_clusters, method, suffix, query, code, members) in cases {
        let case = format!("{all_clusters} {method} {suffix} {query}");
        let body = (method == Method::PATCH).then(|| json!({"data": {"v": "changed"}}));
        let (mut request, admission) =
            (request(method, query, "application/json", body), Arc::new(RefuseM1::default()));
        request.extensions_mut().insert(Arc::clone(&admission) as Arc<dyn MemberAdmission>);
        let path = format!("{CONFIG_MAPS}{suffix}");
        let response = match all_clusters {
            true => env.proxy.cluster("*", &admin(), &path, request).await,
            false => env.proxy.fleet_wide(&admin(), &path, request).await,
        };
        let (actual, status) = read(response).await;
        assert_eq!(actual, code, "{case}: {status}");
        let message = status["message"].as_str().unwrap_or_default();
        assert_eq!(message.ends_with("not m1"), code == 403, "{case}: {message}");
        assert_eq!(*admission.0.lock().unwrap(), members, "{case}");
    }
    env.stop().await;
}
