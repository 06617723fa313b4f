//! Tracks whether the control plane responds to this process. Without it the process cannot authorize callers or see
//! changes. First the process becomes unready, so that clients move to other replicas; later, requests are answered
//! with 503 and connections are closed, so that clients retry elsewhere. Watches end then, and when the process stops;
//! clients resume them elsewhere from their resourceVersion.
//!
//! The task of [`monitor`] updates the state; probes and the middleware read it.

use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_process::reply::StatusResponse;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use crowsnest_apimachinery::request::Query;
use futures::StreamExt;
use http::StatusCode;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crowsnest_process::reply::Body;
use crowsnest_process::serving::OpenConnections;

/// Interval and timeout of the checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// Time without a response after which the process is unready.
const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(4);
/// Time without a response after which requests are refused; load balancers have seen the unready state by then.
const LOST_AFTER: Duration = Duration::from_secs(9);

/// Connectivity to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connectivity {
    Responding,
    Unresponsive,
    Lost,
    /// The checking task panicked.
    CheckFailed,
}

impl Connectivity {
    fn after_silence(silence: Duration) -> Self {
        match silence {
            silence if silence >= LOST_AFTER => Self::Lost,
            silence if silence >= UNRESPONSIVE_AFTER => Self::Unresponsive,
            _ => Self::Responding,
        }
    }

    /// The reason to send requests elsewhere, if any.
    pub(super) fn problem(self) -> Option<String> {
        match self {
            Self::Responding => None,
            Self::Unresponsive | Self::Lost => Some("the control plane does not respond".to_owned()),
            Self::CheckFailed => Some("the task that checks the control plane stopped unexpectedly".to_owned()),
        }
    }
}

/// Reports a panic of the checking task when it is dropped.
struct PanicReporter(watch::Sender<Connectivity>);

impl Drop for PanicReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.send_replace(Connectivity::CheckFailed);
        }
    }
}

/// Checks the control plane until `stop`. While it is lost, open connections are closed, so that clients reconnect.
pub(super) async fn monitor(
    control_plane: kube::Client,
    sender: watch::Sender<Connectivity>,
    connections: OpenConnections,
    stop: CancellationToken,
) {
    let sender = PanicReporter(sender);
    let mut last_response = Instant::now();
    let checks = async {
        loop {
            let response = tokio::time::timeout(CHECK_TIMEOUT, control_plane.apiserver_version()).await;
            // An error status is a response too.
            if matches!(response, Ok(Ok(_) | Err(kube::Error::Api(_)))) {
                last_response = Instant::now();
            }
            let connectivity = Connectivity::after_silence(last_response.elapsed());
            let is_changed =
                sender.0.send_if_modified(|current| std::mem::replace(current, connectivity) != connectivity);
            if is_changed {
                tracing::info!(?connectivity, "the connectivity to the control plane changed");
            }
            if connectivity == Connectivity::Lost {
                connections.close();
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    stop.run_until_cancelled(checks).await;
}

/// State of the middleware.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) connectivity: watch::Receiver<Connectivity>,
    pub(super) stop: CancellationToken,
}

impl Guard {
    async fn wait_until_lost(mut self) {
        // The checking task ends only with the process.
        if self.connectivity.wait_for(|connectivity| *connectivity == Connectivity::Lost).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn wait_until_lost_or_stopped(self) {
        let stop = self.stop.clone();
        tokio::select! {
            () = self.wait_until_lost() => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Middleware: refuses requests and ends watches while the control plane is lost.
pub(super) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let is_watch = request.method() == http::Method::GET && requests_watch(request.uri().query().unwrap_or_default());
    let response = tokio::select! {
        biased;
        () = guard.clone().wait_until_lost() => {
            let message = "the control plane does not respond to this replica";
            return ApiError::new(Reason::ServiceUnavailable, message).into_response();
        }
        response = next.run(request) => response,
    };
    if !is_watch || response.status() != StatusCode::OK {
        return response;
    }
    response
        .map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(guard.wait_until_lost_or_stopped()))))
}

fn requests_watch(query: &str) -> bool {
    Query::parse(Some(query)).flag("watch")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::any;
    use bytes::Bytes;
    use futures::stream;
    use rstest::rstest;
    use tower::ServiceExt;

    #[rstest]
    #[case(3, Connectivity::Responding, None)]
    #[case(4, Connectivity::Unresponsive, Some("the control plane does not respond"))]
    #[case(9, Connectivity::Lost, Some("the control plane does not respond"))]
    fn silence_degrades_the_connectivity(
        #[case] seconds: u64,
        #[case] connectivity: Connectivity,
        #[case] problem: Option<&str>,
    ) {
        assert_eq!(Connectivity::after_silence(Duration::from_secs(seconds)), connectivity);
        assert_eq!(connectivity.problem().as_deref(), problem);
    }

    #[test]
    fn panic_of_the_task_is_reported() {
        let (sender, connectivity) = watch::channel(Connectivity::Responding);
        let panicked_thread = std::thread::spawn(move || {
            let _report = PanicReporter(sender);
            panic!("on purpose");
        });
        assert!(panicked_thread.join().is_err());
        assert!(connectivity.borrow().problem().is_some_and(|problem| problem.ends_with("stopped unexpectedly")));
    }

    #[rstest]
    #[case("watch=true&resourceVersion=7", true)]
    #[case("allowWatchBookmarks=true&watch=1", true)]
    #[case("watch", true)]
    #[case("watch=false", false)]
    #[case("watch=0", false)]
    #[case("labelSelector=watch%3Dtrue", false)]
    #[case("", false)]
    fn watches_are_recognized(#[case] query: &str, #[case] expected: bool) {
        assert_eq!(requests_watch(query), expected);
    }

    /// A router that never responds to `/hangs`, and sends an event to watches at once.
    fn guarded_router(state: &Guard) -> Router {
        let event = || Body::from_stream(stream::iter([Ok::<_, std::io::Error>("{}\n")]).chain(stream::pending()));
        let routes = Router::new()
            .route("/hangs", any(std::future::pending::<Response>))
            .fallback(any(move || std::future::ready(Response::new(event()))));
        routes.layer(axum::middleware::from_fn_with_state(state.clone(), guard))
    }

    async fn send(router: Router, path: &str) -> Response {
        let request = http::Request::get(path).body(Body::empty()).unwrap();
        router.oneshot(request).await.unwrap()
    }

    #[tokio::test]
    async fn requests_are_refused_when_the_control_plane_is_lost() {
        let (sender, connectivity) = watch::channel(Connectivity::Unresponsive);
        let router = guarded_router(&Guard { connectivity, stop: CancellationToken::new() });
        let mut events = send(router.clone(), "/a?watch=true").await.into_body().into_data_stream();
        assert_eq!(events.next().await.unwrap().unwrap(), Bytes::from_static(b"{}\n"));
        let hanging = async {
            // The request is sent first.
            let lose = async { sender.send_replace(Connectivity::Lost) };
            tokio::join!(send(router.clone(), "/hangs"), lose).0
        };
        assert_eq!(hanging.await.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(events.next().await.is_none(), "the watch continues");
        assert_eq!(send(router.clone(), "/a").await.status(), StatusCode::SERVICE_UNAVAILABLE);
        sender.send_replace(Connectivity::Responding);
        assert_eq!(send(router, "/a").await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn watches_end_when_the_process_stops() {
        let (_report, connectivity) = watch::channel(Connectivity::Responding);
        let stop = CancellationToken::new();
        let router = guarded_router(&Guard { connectivity, stop: stop.clone() });
        let mut events = send(router, "/a?watch=true").await.into_body().into_data_stream();
        assert_eq!(events.next().await.unwrap().unwrap(), Bytes::from_static(b"{}\n"));
        stop.cancel();
        assert!(events.next().await.is_none());
    }
}
