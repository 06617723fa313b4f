//! Who may send reviews: on a listener of their own the handshake has judged; beside other APIs a client certificate is judged here,
//! where an authority of such certificates is configured. Without one anybody's reviews are answered, and answering has no effect
//! beside the answer.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::StatusCode;
use rustls::pki_types::UnixTime;

use crate::aggregated::reply::Failure;
use crate::peers::Authorities;
use crate::serving::{ClientChain, ServingError};

/// What is known of a review's sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The review may be forged.
    Anybody,
    /// It has proved to be the API server.
    ApiServer,
}

/// Clones change together.
#[derive(Clone)]
pub(crate) enum Clients {
    Anybody,
    /// The handshake lets the API server through and no other.
    Handshake,
    /// Those with a certificate of an authority; nobody until it has been read.
    Certified(Arc<ArcSwapOption<Authorities>>),
}

impl Clients {
    pub(crate) fn certified() -> Self {
        Self::Certified(Arc::default())
    }

    /// Lets in those who have a certificate of this authority (PEM) in one of these names, of none in any.
    pub(crate) fn believe(&self, authority: &str, names: &[String]) -> Result<(), ServingError> {
        if let Self::Certified(authorities) = self {
            let clients = Authorities::new(Some(authority), names.to_vec(), None)?;
            authorities.store(Some(Arc::new(clients)));
        }
        Ok(())
    }

    fn judge(&self, chain: Option<&ClientChain>) -> Option<Caller> {
        match self {
            Self::Anybody => Some(Caller::Anybody),
            Self::Handshake => Some(Caller::ApiServer),
            Self::Certified(authorities) => {
                let judged = authorities.load_full()?.judge(&chain?.0, UnixTime::now());
                judged.front_proxy.then_some(Caller::ApiServer)
            }
        }
    }
}

/// Refuses requests of others.
pub(super) async fn admit(State(clients): State<Clients>, mut request: Request, next: Next) -> Response {
    let Some(caller) = clients.judge(request.extensions().get::<ClientChain>()) else {
        let message = "the webhooks require a client certificate of the API server";
        return Failure::new(StatusCode::UNAUTHORIZED, "Unauthorized", message).into_response();
    };
    request.extensions_mut().insert(caller);
    next.run(request).await
}
