//! Health endpoints of an agent, which kubelets probe: liveness, and readiness while a tunnel is open. Plain HTTP
//! without information about the cluster.

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use tokio::sync::watch;

/// State of the agent's tunnels to the control plane, which determines its readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TunnelState {
    /// The cluster is being registered.
    Registering,
    Open,
    /// No tunnel is open, with the last error.
    Closed(String),
}

pub(super) fn routes(tunnel: watch::Receiver<TunnelState>) -> Router {
    // A restart does not help an agent that cannot reach the control plane, so it stays alive.
    let serve_liveness = async || "ok";
    Router::new()
        .route("/healthz", get(serve_liveness))
        .route("/livez", get(serve_liveness))
        .route("/readyz", get(serve_readiness))
        .with_state(tunnel)
}

async fn serve_readiness(State(tunnel): State<watch::Receiver<TunnelState>>) -> (StatusCode, String) {
    match &*tunnel.borrow() {
        TunnelState::Open => (StatusCode::OK, "ok".to_owned()),
        TunnelState::Registering => (StatusCode::SERVICE_UNAVAILABLE, "the cluster is not registered yet".to_owned()),
        TunnelState::Closed(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("no tunnel is open: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use http::Request;
    use http_body_util::BodyExt;
    use rstest::rstest;
    use tower::ServiceExt;

    #[rstest]
    #[case("/livez", TunnelState::Registering, 200, "ok")]
    #[case("/healthz", TunnelState::Closed("refused".to_owned()), 200, "ok")]
    #[case("/readyz", TunnelState::Open, 200, "ok")]
    #[case("/readyz", TunnelState::Registering, 503, "the cluster is not registered yet")]
    #[case("/readyz", TunnelState::Closed("refused".to_owned()), 503, "no tunnel is open: refused")]
    #[tokio::test]
    async fn agents_with_a_tunnel_are_ready(
        #[case] path: &str,
        #[case] tunnel: TunnelState,
        #[case] status: u16,
        #[case] expected: &str,
    ) {
        let (_sender, state) = watch::channel(tunnel);
        let response = routes(state).oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status().as_u16(), status);
        let text = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(String::from_utf8_lossy(&text), expected);
    }
}
