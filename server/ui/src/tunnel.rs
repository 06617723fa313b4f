//! Upgraded connections: a terminal's WebSocket is opened to the control plane as the session's user. Its bytes are
//! copied in both directions until one side closes or the server stops.

use axum::extract::Request;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Tracks the tasks that copy the bytes of upgraded connections, and stops them with the server.
#[derive(Clone)]
pub struct UpgradedConnections {
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
}

/// True if the request contains the headers of a WebSocket upgrade.
pub(super) fn is_websocket_upgrade(headers: &HeaderMap) -> bool {
    let contains = |name: HeaderName, token: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
    };
    contains(header::CONNECTION, "upgrade") && contains(header::UPGRADE, "websocket")
}

/// Returns the future of the browser's upgraded connection, if the request is a WebSocket upgrade.
pub(super) fn take_upgrade(request: &mut Request) -> Option<OnUpgrade> {
    is_websocket_upgrade(request.headers()).then(|| hyper::upgrade::on(request))
}

/// Adds the headers that request a WebSocket upgrade from the other side.
pub(super) fn add_upgrade_headers(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}

impl UpgradedConnections {
    /// Spawns a task that copies bytes in both directions.
    pub(super) fn relay(&self, browser: OnUpgrade, upstream: OnUpgrade) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let copying = async {
                // The browser's side is upgraded after the response has been sent.
                let (browser, upstream) = futures::try_join!(browser, upstream)?;
                let (mut browser, mut upstream) = (TokioIo::new(browser), TokioIo::new(upstream));
                tokio::io::copy_bidirectional(&mut browser, &mut upstream).await?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            };
            tokio::select! {
                result = copying => if let Err(error) = result {
                    tracing::debug!(error, "a WebSocket of the UI ended");
                },
                () = stop.cancelled() => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[rstest::rstest]
    #[case::browser("Upgrade", "websocket", true)]
    #[case::through_a_proxy("keep-alive, upgrade", "WebSocket", true)]
    #[case::other_protocol("Upgrade", "SPDY/3.1", false)]
    #[case::without_upgrade("keep-alive", "websocket", false)]
    fn websocket_requests_are_recognized(#[case] connection: &str, #[case] upgrade: &str, #[case] expected: bool) {
        let headers = headers(&[(header::CONNECTION, connection), (header::UPGRADE, upgrade)]);
        assert_eq!(is_websocket_upgrade(&headers), expected);
    }

    #[test]
    fn other_protocols_are_not_upgraded() {
        let request_upgrade_to = |upgrade: &str| {
            http::Request::builder()
                .header("connection", "Upgrade")
                .header("upgrade", upgrade)
                .body(axum::body::Body::empty())
        };
        assert!(take_upgrade(&mut request_upgrade_to("h2c").unwrap()).is_none());
        assert!(take_upgrade(&mut request_upgrade_to("websocket").unwrap()).is_some());
    }
}
