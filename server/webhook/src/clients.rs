//! Clients that may send reviews. A listener of its own verifies client certificates in the handshake. On a shared
//! listener they are verified here, if a certificate authority is configured. Without one, reviews of any client are
//! answered, and have no side effects.

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

/// Trust in the sender of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// The review may be forged.
    Unauthenticated,
    /// The sender has authenticated as the API server.
    ApiServer,
}

/// Accepted clients. Clones share changes.
#[derive(Clone)]
pub enum Clients {
    Unauthenticated,
    /// The TLS handshake accepts the API server only.
    Handshake,
    /// Clients with a certificate of an authority; no client until the authority has been loaded.
    Certified(Arc<ArcSwapOption<Authorities>>),
}

impl Clients {
    pub fn certified() -> Self {
        Self::Certified(Arc::default())
    }

    /// Accepts clients with a certificate of this authority (PEM) and one of these names; an empty list accepts any
    /// name.
    pub fn set_trusted_cas(&self, authority: &str, names: &[String]) -> Result<(), ServingError> {
        if let Self::Certified(authorities) = self {
            let clients = Authorities::new(Some(authority), names.to_vec(), None)?;
            authorities.store(Some(Arc::new(clients)));
        }
        Ok(())
    }

    fn identify(&self, chain: Option<&ClientChain>) -> Option<Caller> {
        match self {
            Self::Unauthenticated => Some(Caller::Unauthenticated),
            Self::Handshake => Some(Caller::ApiServer),
            Self::Certified(authorities) => {
                let peer = authorities.load_full()?.verify_chain(&chain?.0, UnixTime::now());
                peer.is_front_proxy.then_some(Caller::ApiServer)
            }
        }
    }
}

/// Middleware that refuses requests of other clients.
pub(super) async fn admit(State(clients): State<Clients>, mut request: Request, next: Next) -> Response {
    let Some(caller) = clients.identify(request.extensions().get::<ClientChain>()) else {
        let message = "the webhooks require a client certificate of the API server";
        return ApiError::new(Reason::Unauthorized, message).into_response();
    };
    request.extensions_mut().insert(caller);
    next.run(request).await
}
