//! Requests with bodies that never end, on a running server.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use crowsnest_apimachinery::user::{AUTHENTICATED, UserInfo};
use futures::StreamExt;
use http::Request;
use serde_json::json;
use tower::ServiceExt;

use crate::http::InFlightLimits;
use crate::{ApiServer, Config, Data, RequestOptions};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// Less than the time for which a request waits for a permit.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

async fn send(server: &ApiServer, user: &str, path: &str, body: Body) -> u16 {
    let service = server.service(UserInfo::new(user, [AUTHENTICATED]));
    let request = Request::post(path).header("content-type", "application/json").body(body).unwrap();
    service.oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn stalled_bodies_do_not_block_other_requests() {
    let in_flight = InFlightLimits { writes: 1, ..InFlightLimits::default() };
    let requests = RequestOptions { in_flight, ..RequestOptions::default() };
    let server = ApiServer::start(Config { requests, ..Config::new("test", Data::Memory) }).await.unwrap();
    let endless = futures::stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"{")) });
    let endless = Body::from_stream(endless.chain(futures::stream::pending()));
    assert_eq!(send(&server, "slow", &format!("{REVIEWS}?timeout=1s"), endless).await, 504);
    let review = json!({"spec": {"nonResourceAttributes": {"path": "/healthz", "verb": "get"}}});
    let other = send(&server, "other", REVIEWS, Body::from(review.to_string()));
    assert_eq!(tokio::time::timeout(RESPONSE_TIMEOUT, other).await.unwrap(), 201);
    server.stop().await.unwrap();
}
