//! Clients that may send reviews. A listener that serves only the API server verifies client certificates in the TLS
//! handshake. On a shared listener this module verifies them, if a certificate authority is configured. Without one,
//! any client may send reviews, and the reviews reserve no quota.

use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_process::reply::StatusResponse;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use rustls::pki_types::UnixTime;

use crowsnest_process::client_certificate::Authorities;
use crowsnest_process::serving::{ClientChain, ServingError};

/// Sender of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// Any client: the review may be forged.
    Unauthenticated,
    /// A client that has authenticated as the API server.
    ApiServer,
}

/// Accepted clients. Clones share the certificate authority, so that it can be reloaded.
#[derive(Clone)]
pub enum Clients {
    /// All clients, without authentication.
    Unauthenticated,
    /// The TLS handshake accepts the API server only.
    Handshake,
    /// Clients with a certificate issued by this certificate authority; no client until the authority has been loaded.
    Certificate(Arc<ArcSwapOption<Authorities>>),
}

impl Clients {
    /// Accepts no client until [`Self::set_trusted_ca`] is called.
    pub fn with_client_certificates() -> Self {
        Self::Certificate(Arc::default())
    }

    /// Accepts clients with a certificate of this authority (PEM) and one of these common names; an empty list accepts
    /// any name. Has no effect unless the clients are [`Self::Certificate`].
    pub fn set_trusted_ca(&self, ca: &str, names: &[String]) -> Result<(), ServingError> {
        if let Self::Certificate(authorities) = self {
            let new = Authorities::new(Some(ca), names.to_vec(), None)?;
            authorities.store(Some(Arc::new(new)));
        }
        Ok(())
    }

    /// Returns the sender of a request; `None` if it is not accepted.
    fn identify(&self, chain: Option<&ClientChain>) -> Option<Caller> {
        match self {
            Self::Unauthenticated => Some(Caller::Unauthenticated),
            Self::Handshake => Some(Caller::ApiServer),
            Self::Certificate(authorities) => {
                // A front proxy's certificate is verified against a CA and a list of names in the same way.
                let peer = authorities.load_full()?.verify_chain(&chain?.0, UnixTime::now());
                peer.is_front_proxy.then_some(Caller::ApiServer)
            }
        }
    }
}

/// Middleware that refuses requests of clients that are not accepted.
pub(super) async fn admit(State(clients): State<Clients>, mut request: Request, next: Next) -> Response {
    let Some(caller) = clients.identify(request.extensions().get::<ClientChain>()) else {
        let message = "the webhooks require a client certificate of the API server";
        return ApiError::new(Reason::Unauthorized, message).into_response();
    };
    request.extensions_mut().insert(caller);
    next.run(request).await
}
