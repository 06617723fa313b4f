//! In-process clients: the router handles requests without a connection, except upgrades, which use one in memory.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::authn::InProcessUser;
use crowsnest_component_base::user_agent;
use futures::future::BoxFuture;
use http::header::UPGRADE;
use http::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt};

/// Buffer size of an in-memory connection in bytes, per direction.
const PIPE_BYTES: usize = 64 * 1024;

/// A tower service that sends requests as one user.
#[derive(Clone)]
pub struct InProcessService {
    router: Router,
    user: UserInfo,
    /// Connections of upgraded requests, which end with the last clone of the service.
    upgrades: Arc<Mutex<JoinSet<()>>>,
    stop: CancellationToken,
}

impl InProcessService {
    pub fn new(router: Router, user: UserInfo, stop: CancellationToken) -> Self {
        Self { router, user, upgrades: Arc::default(), stop }
    }

    /// A kube client that uses this service.
    pub fn into_client(self) -> kube::Client {
        let user_agent_layer = tower::ServiceBuilder::new().map_request(|mut request: Request<kube::client::Body>| {
            user_agent::set(request.headers_mut());
            request
        });
        kube::Client::new(user_agent_layer.service(self), "default")
    }

    /// Sends an upgrade request over an in-memory connection, since the upgrade takes the connection over.
    async fn send_upgrade(
        self,
        request: Request<Body>,
    ) -> Result<Response<Body>, Box<dyn std::error::Error + Send + Sync>> {
        let (client_side, server_side) = tokio::io::duplex(PIPE_BYTES);
        let router = self.router.clone().layer(axum::Extension(InProcessUser(self.user.clone())));
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(client_side)).await?;
        {
            let mut upgrades = self.upgrades.lock();
            while upgrades.try_join_next().is_some() {}
            upgrades.spawn(crowsnest_apiserver::serve::serve_connection(
                server_side,
                http::Extensions::new(),
                router,
                self.stop.clone(),
            ));
            upgrades.spawn(async move {
                if let Err(error) = connection.with_upgrades().await {
                    tracing::debug!(%error, "in-process connection failed");
                }
            });
        }
        let response = sender.send_request(request).await?;
        Ok(response.map(Body::new))
    }
}

impl<B> Service<Request<B>> for InProcessService
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut request = request.map(Body::new);
        let service = self.clone();
        Box::pin(async move {
            if request.headers().contains_key(UPGRADE) {
                return service.send_upgrade(request).await;
            }
            request.extensions_mut().insert(InProcessUser(service.user.clone()));
            service.router.oneshot(request).await.map_err(|never: Infallible| match never {})
        })
    }
}
