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

use super::health::Tunnel;
use super::replicas::{Number, Replica, Replicas};

#[cfg(test)]
mod tests;

/// A tunnel that was open for this long is not counted as a failure.
const STABLE: Duration = Duration::from_secs(30);

/// Response to a tunnel request.
pub(super) enum Answer<IO> {
    Opened(IO, Option<Replica>),
    /// The replica has a tunnel already.
    Met,
}

/// Requests tunnels with `ask`, which gets the request headers, and serves them until the agent stops.
pub(super) async fn keep<IO, F>(
    ask: impl Fn(HeaderMap) -> F,
    agent: &Agent,
    tell: &watch::Sender<Tunnel>,
    stop: &CancellationToken,
) where
    IO: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    F: Future<Output = anyhow::Result<Answer<IO>>>,
{
    let (mut replicas, mut tunnels) = (Replicas::default(), JoinSet::new());
    let mut told = agent.replicas();
    let mut asking: Option<Pin<Box<F>>> = None;
    let mut next = pin!(tokio::time::sleep(Duration::ZERO));
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = tunnels.join_next() => {
                match ended {
                    Ok((number, lasted, why)) => {
                        replicas.ended(number, lasted >= STABLE);
                        tell_of(&replicas, why, tell);
                    }
                    // It is unknown which tunnel the task served.
                    Err(error) => {
                        tracing::error!(%error, "a tunnel task panicked; reopening all tunnels");
                        replicas.start_over();
                        tell_of(&replicas, "a tunnel task panicked".to_owned(), tell);
                    }
                }
                next.as_mut().reset(Instant::now() + replicas.pause(rand::random()));
            }
            Ok(()) = told.changed() => {
                replicas.told(*told.borrow_and_update());
                // Repeated reports must not postpone the next attempt.
                let soon = Instant::now() + replicas.pause(rand::random());
                if soon < next.deadline() {
                    next.as_mut().reset(soon);
                }
            }
            () = &mut next, if asking.is_none() && replicas.looks() => {
                let mut met = HeaderMap::new();
                replicas.tell(&mut met);
                asking = Some(Box::pin(ask(met)));
            }
            Some(answer) = OptionFuture::from(asking.as_mut()) => {
                asking = None;
                match answer {
                    Ok(Answer::Opened(io, replica)) => {
                        let name = replica.as_ref().map(tracing::field::display);
                        tracing::info!(replica = name, "opened a tunnel");
                        let stop = stop.child_token();
                        let number = replicas.opened(replica, stop.clone());
                        tunnels.spawn(serve(agent.clone(), io, number, stop));
                        tell.send_replace(Tunnel::Open);
                    }
                    Ok(Answer::Met) => replicas.met_again(),
                    Err(error) => {
                        replicas.failed();
                        tell_of(&replicas, format!("{error:#}"), tell);
                    }
                }
                next.as_mut().reset(Instant::now() + replicas.pause(rand::random()));
            }
        }
    }
    // All tunnels were cancelled and drain their connections.
    while tunnels.join_next().await.is_some() {}
}

/// Serves a tunnel; returns its number, how long it was open, and why it ended.
async fn serve<IO>(agent: Agent, io: IO, number: Number, stop: CancellationToken) -> (Number, Duration, String)
where
    IO: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let began = Instant::now();
    let ended = agent.serve(io, &stop).await;
    let why = ended.map_or_else(|error| error.to_string(), |()| "closed by the control plane".to_owned());
    (number, began.elapsed(), why)
}

/// Logs that a tunnel is missing, and publishes the state if none is left.
fn tell_of(replicas: &Replicas, why: String, tell: &watch::Sender<Tunnel>) {
    if replicas.is_empty() {
        tracing::warn!(error = %why, "no tunnel is open; will retry");
        tell.send_replace(Tunnel::Closed(why));
    } else {
        tracing::info!(%why, "a tunnel to a replica was closed; will retry");
    }
}
