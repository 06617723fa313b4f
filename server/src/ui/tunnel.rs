//! Connections that are upgraded: a terminal's WebSocket is opened at the control plane as the session's user, then moved byte for
//! byte until one side is done, or the server stops.

use axum::extract::Request;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What owns such connections.
#[derive(Clone)]
pub(crate) struct Tunnels {
    pub(crate) tasks: TaskTracker,
    pub(crate) stopping: CancellationToken,
}

/// Whether a request asks for a WebSocket.
pub(super) fn wanted(headers: &HeaderMap) -> bool {
    let is = |name: HeaderName, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
    };
    is(header::CONNECTION, "upgrade") && is(header::UPGRADE, "websocket")
}

/// Whether a page of this very address asks. A WebSocket carries the cookie and no header of a page's own, but the browser always
/// says where the page is from; other ports of the same host are other people's.
pub(super) fn same_origin(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    match (text(header::ORIGIN).and_then(|origin| origin.split_once("://")), text(header::HOST)) {
        (Some((_, origin)), Some(host)) => origin.eq_ignore_ascii_case(host),
        _ => false,
    }
}

/// The browser's side. What is about the connection is taken out of the request, and said anew when it is to be a WebSocket.
pub(super) fn take(request: &mut Request) -> Option<OnUpgrade> {
    let ours = wanted(request.headers()).then(|| hyper::upgrade::on(&mut *request));
    let headers = request.headers_mut();
    headers.remove(header::CONNECTION);
    headers.remove(header::UPGRADE);
    if ours.is_some() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    ours
}

impl Tunnels {
    /// Ties the two sides together.
    pub(super) fn join(&self, ours: OnUpgrade, theirs: OnUpgrade) {
        let stopping = self.stopping.clone();
        self.tasks.spawn(async move {
            let moving = async {
                // The browser's side stands only once the answer has been sent.
                let (ours, theirs) = futures::try_join!(ours, theirs)?;
                let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
                tokio::io::copy_bidirectional(&mut ours, &mut theirs).await?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            };
            tokio::select! {
                ended = moving => if let Err(error) = ended {
                    tracing::debug!(error, "a WebSocket of the UI ended");
                },
                () = stopping.cancelled() => {}
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
    #[case::another("Upgrade", "SPDY/3.1", false)]
    #[case::not_now("keep-alive", "websocket", false)]
    fn who_asks_for_a_websocket(#[case] connection: &str, #[case] upgrade: &str, #[case] expected: bool) {
        let headers = headers(&[(header::CONNECTION, connection), (header::UPGRADE, upgrade)]);
        assert_eq!(wanted(&headers), expected);
    }

    #[rstest::rstest]
    #[case::own_page(&[(header::ORIGIN, "http://127.0.0.1:7080"), (header::HOST, "127.0.0.1:7080")], true)]
    #[case::behind_tls(&[(header::ORIGIN, "https://fleet.example"), (header::HOST, "fleet.example")], true)]
    #[case::another_port(&[(header::ORIGIN, "http://127.0.0.1:8080"), (header::HOST, "127.0.0.1:7080")], false)]
    #[case::another_site(&[(header::ORIGIN, "https://evil.example"), (header::HOST, "127.0.0.1:7080")], false)]
    #[case::a_file(&[(header::ORIGIN, "null"), (header::HOST, "127.0.0.1:7080")], false)]
    #[case::no_browser(&[(header::HOST, "127.0.0.1:7080")], false)]
    fn whose_page_asks(#[case] told: &[(HeaderName, &str)], #[case] expected: bool) {
        assert_eq!(same_origin(&headers(told)), expected);
    }

    #[test]
    fn nothing_else_is_upgraded() {
        let ask = |upgrade: &str| {
            http::Request::builder()
                .header("connection", "Upgrade")
                .header("upgrade", upgrade)
                .body(axum::body::Body::empty())
        };
        let mut other = ask("h2c").unwrap();
        assert!(take(&mut other).is_none());
        assert!(other.headers().is_empty(), "{:?}", other.headers());
        let mut websocket = ask("websocket").unwrap();
        assert!(take(&mut websocket).is_some());
        assert_eq!(websocket.headers()[header::UPGRADE], "websocket");
    }
}
