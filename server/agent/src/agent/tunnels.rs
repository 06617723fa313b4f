//! The tunnels of an agent: one to each replica of the control plane, reopened when it ends.

use std::pin::{Pin, pin};
use std::time::Duration;

use crowsnest_members::tunnel::Agent;
use futures::future::OptionFuture;
use http::HeaderMap;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::health::TunnelState;
use super::replicas::{Replica, Replicas, TunnelNumber};

#[cfg(test)]
mod tests;

/// Minimum time for which a tunnel must be open so that its end resets the number of failures.
const MIN_STABLE_DURATION: Duration = Duration::from_secs(30);

/// Response to a tunnel request.
pub(super) enum TunnelResponse<IO> {
    Opened(IO, Option<Replica>),
    /// The replica has a tunnel already.
    AlreadyOpen,
}

/// Requests tunnels with `request_tunnel`, which receives the request headers, and serves them until the agent stops.
pub(super) async fn maintain<IO, F>(
    request_tunnel: impl Fn(HeaderMap) -> F,
    agent: &Agent,
    state: &watch::Sender<TunnelState>,
    stop: &CancellationToken,
) where
    IO: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    F: Future<Output = anyhow::Result<TunnelResponse<IO>>>,
{
    let (mut replicas, mut tunnels) = (Replicas::default(), JoinSet::new());
    let mut replica_count = agent.replicas();
    let mut pending_request: Option<Pin<Box<F>>> = None;
    let mut next_attempt = pin!(tokio::time::sleep(Duration::ZERO));
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(result) = tunnels.join_next() => {
                match result {
                    Ok((number, open_time, reason)) => {
                        replicas.record_ended(number, open_time >= MIN_STABLE_DURATION);
                        report_closed(&replicas, reason, state);
                    }
                    // It is unknown which tunnel the task served.
                    Err(error) => {
                        tracing::error!(%error, "a tunnel task panicked; reopening all tunnels");
                        replicas.close_all();
                        report_closed(&replicas, "a tunnel task panicked".to_owned(), state);
                    }
                }
                next_attempt.as_mut().reset(Instant::now() + replicas.retry_delay(rand::random()));
            }
            Ok(()) = replica_count.changed() => {
                replicas.record_replica_count(*replica_count.borrow_and_update());
                // Repeated reports must not postpone the next attempt.
                let earliest = Instant::now() + replicas.retry_delay(rand::random());
                if earliest < next_attempt.deadline() {
                    next_attempt.as_mut().reset(earliest);
                }
            }
            () = &mut next_attempt, if pending_request.is_none() && replicas.may_find_more() => {
                let mut headers = HeaderMap::new();
                replicas.write_header(&mut headers);
                pending_request = Some(Box::pin(request_tunnel(headers)));
            }
            Some(response) = OptionFuture::from(pending_request.as_mut()) => {
                pending_request = None;
                match response {
                    Ok(TunnelResponse::Opened(io, replica)) => {
                        let name = replica.as_ref().map(tracing::field::display);
                        tracing::info!(replica = name, "opened a tunnel");
                        let stop = stop.child_token();
                        let number = replicas.record_opened(replica, stop.clone());
                        tunnels.spawn(serve(agent.clone(), io, number, stop));
                        state.send_replace(TunnelState::Open);
                    }
                    Ok(TunnelResponse::AlreadyOpen) => replicas.record_already_open(),
                    Err(error) => {
                        replicas.record_failure();
                        report_closed(&replicas, format!("{error:#}"), state);
                    }
                }
                next_attempt.as_mut().reset(Instant::now() + replicas.retry_delay(rand::random()));
            }
        }
    }
    // The tunnels were cancelled with `stop`; wait until they have drained their connections.
    while tunnels.join_next().await.is_some() {}
}

/// Serves a tunnel; returns its number, the time for which it was open, and why it ended.
async fn serve<IO>(
    agent: Agent,
    io: IO,
    number: TunnelNumber,
    stop: CancellationToken,
) -> (TunnelNumber, Duration, String)
where
    IO: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let started_at = Instant::now();
    let result = agent.serve(io, &stop).await;
    let reason = result.map_or_else(|error| error.to_string(), |()| "closed by the control plane".to_owned());
    (number, started_at.elapsed(), reason)
}

/// Logs that a tunnel is missing, and publishes the state if none is left.
fn report_closed(replicas: &Replicas, reason: String, state: &watch::Sender<TunnelState>) {
    if replicas.is_empty() {
        tracing::warn!(error = %reason, "no tunnel is open; will retry");
        state.send_replace(TunnelState::Closed(reason));
    } else {
        tracing::info!(%reason, "a tunnel to a replica was closed; will retry");
    }
}
