//! `clusters/{name}/proxy`: forwards requests of any method, including upgrades, to one member.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::{MAX_REQUEST_BODY_BYTES, remove_hop_by_hop, requested_upgrade};
use crowsnest_component_base::body::{self, BodyError};
use crowsnest_members::{ImpersonatedAttributes, Member, impersonated_headers};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::relay::relay;
use crate::session::{self, Session};
use crate::transport::check_path;
use crate::{Body, BoxError, Caller, ClusterObserver, Error, Proxy, admission};

/// Size limit in bytes of a response body that is rewritten before it is forwarded; equal to that of request bodies.
const MAX_RESPONSE_BODY_BYTES: usize = MAX_REQUEST_BODY_BYTES;

impl Proxy {
    pub(crate) async fn forward_to_cluster(
        &self,
        name: &str,
        caller: &Caller,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let not_found = || Error::ClusterNotFound(name.to_owned());
        let cluster = ClusterName::parse(name).map_err(|_| not_found())?;
        let Some(member) = self.inner.fleet.member(&cluster) else {
            self.inner.transport.retain(|cluster| self.inner.fleet.member(cluster).is_some());
            return Err(not_found());
        };
        self.forward_to_member(&member, caller, path, request, None).await
    }

    /// Sends a request to a member as the caller and, if it is upgraded, relays the connection. `timeout` limits the
    /// time to the response head; `None` means the member's own timeout.
    pub(crate) async fn forward_to_member(
        &self,
        member: &Arc<Member>,
        caller: &Caller,
        path: &str,
        mut request: Request<Body>,
        timeout: Option<Duration>,
    ) -> Result<Response<Body>, Error> {
        let path = check_path(request.method(), path)?;
        let upgrade = take_upgrade(&mut request);
        if let Some(reason) = session::forbidden_reason(member, path, upgrade.is_some()) {
            return Err(Error::SessionForbidden { cluster: member.name().clone(), reason });
        }
        let observer = request.extensions_mut().remove::<Arc<dyn ClusterObserver>>();
        if let Some(observer) = &observer {
            observer.record_request(member.name());
        }
        admission::admit(&mut request, member.name()).await?;
        let session = upgrade.map(|client| (client, Session::new(caller, member.name(), path, request.uri().query())));
        // A request to a single member waits for its agent to connect; a fan-out does not.
        let current = if timeout.is_none() { self.inner.fleet.wait_for_tunnel(member.name()).await } else { None };
        let member = current.as_ref().unwrap_or(member);
        let response = self.inner.transport.send(member, caller, path, request, timeout).await?;
        Ok(self.relay_upgraded(session, response, observer))
    }

    /// Sends a request to the control plane as the caller.
    pub(crate) async fn forward_to_control_plane(
        &self,
        caller: &Caller,
        path: &str,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let path = check_path(request.method(), path)?;
        let session = take_upgrade(&mut request).map(|client| {
            let session = Session::new(caller, &ClusterName::control_plane(), path, request.uri().query());
            (client, session)
        });
        let observer = request.extensions_mut().remove::<Arc<dyn ClusterObserver>>();
        if let Some(observer) = &observer {
            observer.record_request(&ClusterName::control_plane());
        }
        let bad_request =
            |error: &dyn std::fmt::Display| Error::BadRequest(format!("cannot forward the request: {error}"));
        *request.headers_mut() =
            impersonated_headers(request.headers(), caller, None, ImpersonatedAttributes::UserAndGroups)
                .map_err(|error| bad_request(&error))?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        *request.uri_mut() =
            format!("{slash}{path}{query}").parse().map_err(|error: http::uri::InvalidUri| bad_request(&error))?;
        // kube-apiserver sends HTTP/2, but the connections to members are HTTP/1.1.
        *request.version_mut() = http::Version::HTTP_11;
        let (parts, body) = request.into_parts();
        let body = read_request_body(body).await?;
        let response = self.inner.fleet.control_plane().send(Request::from_parts(parts, body.into())).await;
        let mut response = response.map_err(Error::ControlPlane)?;
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS if session.is_some() => {}
            StatusCode::SWITCHING_PROTOCOLS => return Err(Error::UnrequestedUpgrade(ClusterName::control_plane())),
            _ => remove_hop_by_hop(response.headers_mut()),
        }
        Ok(self.relay_upgraded(session, response.map(|body| body.map_err(BoxError::from).boxed_unsync()), observer))
    }

    /// After a 101 response, starts a task that copies bytes in both directions until both sides are done. Returns the
    /// response.
    fn relay_upgraded(
        &self,
        session: Option<(OnUpgrade, Session)>,
        mut response: Response<Body>,
        observer: Option<Arc<dyn ClusterObserver>>,
    ) -> Response<Body> {
        let (Some((client, session)), StatusCode::SWITCHING_PROTOCOLS) = (session, response.status()) else {
            return response;
        };
        let upstream = hyper::upgrade::on(&mut response);
        let stopping = self.inner.stopping.clone();
        self.inner.tunnels.spawn(async move {
            let running = session.start();
            let tunnel = async {
                // The client's side is upgraded only after the response is sent, so wait for both.
                let (client, upstream) = futures::try_join!(client, upstream)?;
                relay(TokioIo::new(client), TokioIo::new(upstream), running.byte_counts()).await?;
                Ok::<_, BoxError>(())
            };
            tokio::select! {
                ended = tunnel => if let Err(error) = ended {
                    tracing::debug!(%error, "tunnel ended");
                },
                () = stopping.cancelled() => {}
            }
            running.end();
            drop(observer);
        });
        response
    }
}

/// The client's connection if it requests an upgrade.
fn take_upgrade(request: &mut Request<Body>) -> Option<OnUpgrade> {
    requested_upgrade(request.headers()).map(|_| hyper::upgrade::on(request))
}

/// Reads a request body that is needed completely before it is forwarded.
pub(crate) async fn read_request_body(body: Body) -> Result<bytes::Bytes, Error> {
    body::collect_request(body, MAX_REQUEST_BODY_BYTES).await.map_err(|error| match error {
        BodyError::TooLarge { limit } => Error::TooLarge(limit),
        BodyError::Read(error) => Error::Body(error),
    })
}

/// Reads a response body that is rewritten before it is forwarded.
pub(crate) async fn read_response_body(body: Body) -> Result<bytes::Bytes, Error> {
    body::collect(body, MAX_RESPONSE_BODY_BYTES).await.map_err(|error| match error {
        BodyError::TooLarge { limit } => Error::ResponseTooLarge(limit),
        BodyError::Read(error) => Error::ResponseBody(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Clients read the response to an oversized request after they have sent its body. A response is read only up to the
    /// limit.
    #[tokio::test]
    async fn only_the_rest_of_an_oversized_request_is_read() {
        const FRAME_BYTES: usize = MAX_REQUEST_BODY_BYTES / 3;
        let count = Arc::new(AtomicUsize::new(0));
        let oversized_body = || -> Body {
            let reads = Arc::clone(&count);
            let frames = (0..10).map(move |_| {
                reads.fetch_add(1, Ordering::Relaxed);
                Ok::<_, BoxError>(Frame::data(Bytes::from(vec![b' '; FRAME_BYTES])))
            });
            StreamBody::new(futures::stream::iter(frames)).boxed_unsync()
        };
        let result = read_request_body(oversized_body()).await;
        assert!(matches!(result, Err(Error::TooLarge(MAX_REQUEST_BODY_BYTES))));
        assert_eq!(count.swap(0, Ordering::Relaxed), 10);
        let result = read_response_body(oversized_body()).await;
        assert!(matches!(result, Err(Error::ResponseTooLarge(MAX_RESPONSE_BODY_BYTES))));
        assert_eq!(count.load(Ordering::Relaxed), 4);
    }
}
